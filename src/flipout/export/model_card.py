"""The model card: the measured weights, bytes, multiply-adds, memory and latencies of a network, and their tables."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..channels.comparison import Example, as_example, inputs_like
from ..channels.copies import evaluation_copy, first_line
from ..channels.live_paths import count_effective
from ..modules import unwrapped
from ..text_table import table
from .acceleration import accelerate
from .compaction import compact_copy
from .costs import (
    count_multiply_adds,
    dense_file_bytes,
    format_bytes,
    peak_activation_bytes,
    sparse_file_bytes,
    weights_to_count,
)
from .formats import open_session, run_session, session_inputs, to_onnx
from .quantization import Agreement, Examples, agreement_of
from .timing import Timing, format_milliseconds, time_interleaved

if TYPE_CHECKING:
    from rich.table import Table

DENSE_IN_PYTORCH = ("dense", "PyTorch")
"""The form and runtime that all latencies are compared with."""
GPU_REMARK = (
    "A GPU is not faster with zeros that are scattered over a dense tensor: use the compacted network there. The "
    "accelerated network is for the CPU that it was measured on."
)
TIMED_BATCHES = (1, 32)
BUSY_RATIO = 2.0
BUSY_REMARK = (
    "The machine was busy: for some forms the quartiles differ by more than a factor of two, so their ratios are not "
    "reliable. Measure again when it is idle."
)
DEAD_REMARK = (
    "No weight lies on a path from the input to the output: the output does not depend on the input, and the latencies "
    "are meaningless."
)


@dataclass(frozen=True)
class Latency:
    """The latency of one form of a network, in one runtime, at one batch size."""

    form: str
    runtime: str
    batch: int
    time: Timing


@dataclass(frozen=True)
class ModelCard:
    """All measurements of a network. Print it, or use `markdown`, `json` or `rich_tables`.

    Files are in bytes, multiply-adds for a forward pass of one example, and activations the peak bytes of that pass.
    """

    network: str
    prunable: int
    nonzero: int
    effective: int
    file_dense: int
    file_sparse: int
    file_compacted: int
    multiply_adds_dense: int
    multiply_adds_nonzero: int
    multiply_adds_compacted: int
    activations_dense: int
    activations_compacted: int
    latencies: tuple[Latency, ...]
    threads: int
    notes: tuple[str, ...]
    file_int8: int | None = None
    agreement: float | None = None
    """The share of the largest outputs on the calibration batches that are the same in int8."""

    @property
    def sections(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Two tables as (head, rows): counts, and latencies."""
        return [
            ((self.network, "", ""), self._count_rows()),
            (("latency", "batch", "median ms", "quartiles", "speedup"), self._latency_rows()),
        ]

    def _count_rows(self) -> list[Sequence[str]]:
        def row(label: str, number: int, dense: int, text: Callable[[int], str] = format_bytes) -> Sequence[str]:
            return label, text(number), f"{dense / number:,.1f} times less" if number and dense != number else ""

        def zeros(label: str, number: int) -> Sequence[str]:
            return label, f"{number:,}", f"{1 - number / self.prunable:.4%} zeros" if self.prunable else ""

        bytes_, operations, memory, count = (
            self.file_dense,
            self.multiply_adds_dense,
            self.activations_dense,
            "{:,}".format,
        )
        return [
            ("prunable weights", f"{self.prunable:,}", ""),
            zeros("nonzero weights (nominal)", self.nonzero),
            zeros("weights on a live path (effective)", self.effective),
            row("file, dense safetensors", bytes_, bytes_),
            row("file, sparse", self.file_sparse, bytes_),
            row("file, compacted safetensors", self.file_compacted, bytes_),
            *([] if self.file_int8 is None else [row("file, compacted int8 ONNX", self.file_int8, bytes_)]),
            *([] if self.agreement is None else [("int8, same largest outputs", f"{self.agreement:.2%}", "")]),
            row("multiply-adds, dense", operations, operations, count),
            row("multiply-adds, nonzero weights", self.multiply_adds_nonzero, operations, count),
            row("multiply-adds, compacted", self.multiply_adds_compacted, operations, count),
            row("peak activations, dense", memory, memory),
            row("peak activations, compacted", self.activations_compacted, memory),
        ]

    def _latency_rows(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = []
        dense = {
            each.batch: each.time.median for each in self.latencies if (each.form, each.runtime) == DENSE_IN_PYTORCH
        }
        for each in self.latencies:
            is_reference = (each.form, each.runtime) == DENSE_IN_PYTORCH
            speedup = "" if is_reference else f"{dense[each.batch] / each.time.median:.2f}"
            label, median = f"{each.form}, {each.runtime}", format_milliseconds(each.time.median)
            rows.append((label, str(each.batch), median, each.time.quartiles, speedup))
        return rows

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that must accompany the numbers."""
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        dead = (DEAD_REMARK,) if self.prunable and not self.effective else ()
        is_busy = any(each.time.high > BUSY_RATIO * each.time.low for each in self.latencies)
        busy = (BUSY_REMARK,) if is_busy else ()
        measured = f"Latencies are medians of interleaved runs in one process with {threads}."
        return (measured, *busy, GPU_REMARK, *dead, *self.notes)

    def __str__(self) -> str:
        return "\n\n".join([*(table(head, rows) for head, rows in self.sections), "\n".join(self.remarks)])

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        parts = []
        for head, rows in self.sections:
            rule = ["---", *["---:"] * (len(head) - 1)]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows)))
        return "\n\n".join([*parts, *self.remarks]) + "\n"

    def json(self) -> str:
        """Return all numbers as JSON: bytes, counts and milliseconds."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def rich_tables(self) -> list[Table]:
        """Return the tables for a rich console."""
        try:
            from rich.table import Table
        except ImportError as error:
            raise ImportError("tables for a console need rich: pip install 'flipout[export]'") from error
        tables = []
        for head, rows in self.sections:
            drawn = Table(head[0])
            for column in head[1:]:
                drawn.add_column(column, justify="right")
            for row in rows:
                drawn.add_row(*row)
            tables.append(drawn)
        return tables


@torch.no_grad()
def card(
    model: nn.Module,
    example_input: Example,
    *,
    repetitions: int = 20,
    batches: Sequence[int] = TIMED_BATCHES,
    onnx: bool = True,
    calibrate: Iterable[Any] | None = None,
) -> ModelCard:
    """Measure a network: unchanged, compacted, and accelerated.

    Latencies are measured interleaved, in one process, so that their ratios are valid on a busy machine. If onnxruntime
    is installed, it runs the dense and the compacted network too.

        >>> measured = flipout.export.card(model, example_input, repetitions=1, onnx=False)
        >>> text = measured.markdown()

    Args:
        model: the network; it is not changed, and is measured on the CPU.
        example_input: the inputs that the network is called with, of any batch size.
        repetitions: the number of timings of each form.
        batches: the batch sizes to time.
        onnx: whether to time onnxruntime, if it is installed.
        calibrate: batches for int8; if they are given, the compacted network is measured in int8 too, and compared with
            the network in floating point.
    """
    example = tuple(tensor.cpu() for tensor in as_example(example_input))
    dense = evaluation_copy(model).cpu().requires_grad_(False)
    compacted, notes = compact_copy(dense, (example, {}))
    # Pruners are attached to the weights of the network itself, not to those of the copy.
    weights, one = count_effective(dense, (example, {}), weights_to_count(model)), inputs_like(example, 1)
    _check_batches(dense, example, batches)
    operations, operations_compacted = count_multiply_adds(dense, one), count_multiply_adds(compacted, one)
    if operations.not_counted:
        names = ", ".join(operations.not_counted)
        notes.append(f"the multiply-adds do not include those of {names}, for which there is no formula")
    with_onnx = onnx and all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    with tempfile.TemporaryDirectory() as folder:
        int8 = None if calibrate is None else _int8(compacted, Path(folder) / "int8.onnx", example, calibrate)
        sessions = {} if int8 is None else {"compacted int8": int8.session}
        latencies, latency_notes = _latencies(
            dense, compacted, example, repetitions, batches, sessions, with_onnx=with_onnx
        )
    return ModelCard(
        network=type(unwrapped(model)).__name__,
        prunable=weights.prunable,
        nonzero=weights.nonzero,
        effective=weights.effective,
        file_dense=dense_file_bytes(dense),
        file_sparse=sparse_file_bytes(dense),
        file_compacted=dense_file_bytes(compacted),
        multiply_adds_dense=operations.dense,
        multiply_adds_nonzero=operations.nonzero,
        multiply_adds_compacted=operations_compacted.dense,
        activations_dense=peak_activation_bytes(dense, one),
        activations_compacted=peak_activation_bytes(compacted, one),
        latencies=tuple(latencies),
        threads=torch.get_num_threads(),
        notes=(*notes, *latency_notes),
        file_int8=None if int8 is None else int8.bytes,
        agreement=None if int8 is None else int8.agreement.same,
    )


class Int8(NamedTuple):
    """A network in int8: a session that runs it, the size of its file, and how well it agrees."""

    session: Any
    bytes: int
    agreement: Agreement


def _int8(network: nn.Module, path: Path, example: tuple[Tensor, ...], calibrate: Iterable[Any]) -> Int8:
    examples = Examples(network, calibrate)
    to_onnx(network, path, example, calibrate=examples.batches.batches)
    session = open_session(path)
    agreement = agreement_of(network, lambda inputs: run_session(session, inputs), examples)
    return Int8(session, path.stat().st_size, agreement)


def _check_batches(network: nn.Module, example: tuple[Tensor, ...], batches: Sequence[int]) -> None:
    for batch in sorted({1, *batches}):
        try:
            network(*inputs_like(example, batch))
        except Exception as error:  # the user's code may raise any error
            raise ValueError(
                f"the network does not run on a batch of {batch} (the first axis): {first_line(error)}"
            ) from error


def _latencies(
    dense: nn.Module,
    compacted: nn.Module,
    example: tuple[Tensor, ...],
    repetitions: int,
    batches: Sequence[int],
    further: Mapping[str, Any],
    *,
    with_onnx: bool,
) -> tuple[list[Latency], list[str]]:
    """Time every form in every runtime at every batch size; return also notes on what could not be timed."""
    latencies: list[Latency] = []
    notes: list[str] = []
    sessions: dict[str, Any] = dict(further)
    if with_onnx:
        try:
            plain = {"dense": _onnx_session(dense, example), "compacted": _onnx_session(compacted, example)}
            sessions = plain | sessions
        except ValueError as error:
            notes.append(f"not timed in onnxruntime: {error}")
    for batch in batches:
        inputs = inputs_like(example, batch)
        accelerated = accelerate(dense, inputs, repetitions=repetitions)
        forms = {"dense": dense, "compacted": compacted, "accelerated": accelerated}
        functions = {(form, "PyTorch"): partial(network, *inputs) for form, network in forms.items()}
        functions |= {
            (form, "onnxruntime"): partial(session.run, None, session_inputs(session, inputs))
            for form, session in sessions.items()
        }
        latencies += [Latency(*name, batch, time) for name, time in time_interleaved(functions, repetitions).items()]
    return latencies, notes


def _onnx_session(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        to_onnx(network, path, example)
        return open_session(path)

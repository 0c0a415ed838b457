"""The card of a network: its weights, bytes, multiply-adds, memory and milliseconds, measured."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..graph.comparison import Example, as_example, inputs_like, own_copy
from ..graph.live_paths import effective
from ..graph.tracing_errors import first_line
from ..layers import unwrapped
from ..text_table import table
from .compaction import smaller
from .costs import dense_bytes, multiply_adds, peak_activations, readable, skipped_multiply_adds, sparse_bytes
from .formats.onnx_file import feed, session, to_onnx
from .speed.acceleration import accelerate
from .speed.interleaved_timing import Time, digits, interleaved

if TYPE_CHECKING:
    from rich.table import Table

BATCHES = (1, 32)
GPU = (
    "A GPU does not run zeros that are scattered over a dense tensor any faster: there the compacted network is what "
    "counts. Accelerated is for the CPU it was measured on."
)
UNSTEADY = 2.0
BUSY = (
    "The machine was busy: of some forms the middle half of the times spans more than a factor of two, and their "
    "ratios say little. Measure again when it is idle."
)
DEAD = (
    "No weight lies on a path from the input to the output: the network answers the same whatever it sees, and its "
    "latencies say nothing."
)


@dataclass(frozen=True)
class Latency:
    """Of one form of a network, in one runtime, at one batch size."""

    form: str
    runtime: str
    batch: int
    time: Time


@dataclass(frozen=True)
class Card:
    """Everything that was measured, activations for a batch of one; print it, or see `markdown`, `json`, `table`."""

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

    @property
    def sections(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Two tables: what is counted, and what is timed."""

        def share(part: int, whole: int) -> str:
            return f"{whole / part:,.1f} times less" if part and whole != part else ""

        bytes_, operations, memory = self.file_dense, self.multiply_adds_dense, self.activations_dense
        counted: list[Sequence[str]] = [
            ("weights that can be pruned", f"{self.prunable:,}", ""),
            ("not zero (nominal)", f"{self.nonzero:,}", _sparsity(self.nonzero, self.prunable)),
            ("on a live path (effective)", f"{self.effective:,}", _sparsity(self.effective, self.prunable)),
            ("file, dense safetensors", readable(bytes_), ""),
            ("file, sparse", readable(self.file_sparse), share(self.file_sparse, bytes_)),
            ("file, compacted safetensors", readable(self.file_compacted), share(self.file_compacted, bytes_)),
            ("multiply-adds, dense", f"{operations:,}", ""),
            (
                "multiply-adds, not by zero",
                f"{self.multiply_adds_nonzero:,}",
                share(self.multiply_adds_nonzero, operations),
            ),
            (
                "multiply-adds, compacted",
                f"{self.multiply_adds_compacted:,}",
                share(self.multiply_adds_compacted, operations),
            ),
            ("peak activations, dense", readable(memory), ""),
            (
                "peak activations, compacted",
                readable(self.activations_compacted),
                share(self.activations_compacted, memory),
            ),
        ]
        timed: list[Sequence[str]] = []
        dense = {each.batch: each.time.median for each in self.latencies if (each.form, each.runtime) == FIRST}
        for each in self.latencies:
            ratio = "" if (each.form, each.runtime) == FIRST else f"{dense[each.batch] / each.time.median:.2f}"
            label, median = f"{each.form}, {each.runtime}", digits(each.time.median)
            timed.append((label, str(each.batch), median, each.time.spread, ratio))
        return [
            ((self.network, "", ""), counted),
            (("latency", "batch", "median ms", "middle half", "times faster"), timed),
        ]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What has to be said with the numbers."""
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        dead = (DEAD,) if self.prunable and not self.effective else ()
        busy = (BUSY,) if any(each.time.high > UNSTEADY * each.time.low for each in self.latencies) else ()
        return (f"Medians in turn, in one process, {threads}.", *busy, GPU, *dead, *self.notes)

    def __str__(self) -> str:
        return "\n\n".join([*(table(head, rows) for head, rows in self.sections), "\n".join(self.remarks)])

    def markdown(self) -> str:
        """The tables as Markdown."""
        parts = []
        for head, rows in self.sections:
            rule = ["---", *["---:"] * (len(head) - 1)]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows)))
        return "\n\n".join([*parts, *self.remarks]) + "\n"

    def json(self) -> str:
        """Every number as JSON: bytes, counts and milliseconds."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def table(self) -> list[Table]:
        """The tables for a console of rich."""
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


FIRST = ("dense", "PyTorch")


def _sparsity(part: int, whole: int) -> str:
    return f"{1 - part / whole:.4%} zeros" if whole else ""


@torch.no_grad()
def card(
    model: nn.Module,
    example_input: Example,
    *,
    repetitions: int = 20,
    batches: Sequence[int] = BATCHES,
    onnx: bool = True,
) -> Card:
    """Measures a network: as it is, compacted, and accelerated.

    Latencies are taken in turn, in one process, so that their ratios hold on a machine that does other things too.
    Where onnxruntime is installed, it runs the dense and the compacted network as well.

    Args:
        model: the network; it stays as it is, and is measured on the CPU.
        example_input: what it is called with, of any batch size.
        repetitions: of each timing.
        batches: the batch sizes to time.
        onnx: whether to time onnxruntime, where it is installed.
    """
    example = tuple(tensor.cpu() for tensor in as_example(example_input))
    dense = own_copy(model).cpu().requires_grad_(False)
    small, notes = smaller(dense, example, fixed_size=False)
    live, one = effective(dense, example), inputs_like(example, 1)
    for batch in sorted({1, *batches}):
        try:
            dense(*inputs_like(example, batch))
        except Exception as error:  # any code of the user's may run here
            raise ValueError(
                f"the network does not run on a batch of {batch}, the first axis: {first_line(error)}"
            ) from error
    operations = multiply_adds(dense, one)
    with_onnx = onnx and all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    latencies, remarks = _latencies(dense, small, example, repetitions, batches, with_onnx=with_onnx)
    return Card(
        network=type(unwrapped(model)).__name__,
        prunable=live.prunable,
        nonzero=live.nonzero,
        effective=live.effective,
        file_dense=dense_bytes(dense),
        file_sparse=sparse_bytes(dense),
        file_compacted=dense_bytes(small),
        multiply_adds_dense=operations,
        multiply_adds_nonzero=operations - skipped_multiply_adds(dense, one),
        multiply_adds_compacted=multiply_adds(small, one),
        activations_dense=peak_activations(dense, one),
        activations_compacted=peak_activations(small, one),
        latencies=tuple(latencies),
        threads=torch.get_num_threads(),
        notes=(*notes, *remarks),
    )


def _latencies(
    dense: nn.Module,
    small: nn.Module,
    example: tuple[Tensor, ...],
    repetitions: int,
    batches: Sequence[int],
    *,
    with_onnx: bool,
) -> tuple[list[Latency], list[str]]:
    """Of every form in every runtime at every batch size, and what could not be timed."""
    latencies: list[Latency] = []
    remarks: list[str] = []
    sessions: dict[str, Any] = {}
    if with_onnx:
        try:
            sessions = {"dense": _onnx(dense, example), "compacted": _onnx(small, example)}
        except ValueError as error:
            remarks.append(f"not timed in onnxruntime: {error}")
    for batch in batches:
        inputs = inputs_like(example, batch)
        fast = accelerate(dense, inputs, repetitions=repetitions)
        forms = {"dense": dense, "compacted": small, "accelerated": fast}
        works = {(form, "PyTorch"): partial(network, *inputs) for form, network in forms.items()}
        works |= {
            (form, "onnxruntime"): partial(runtime.run, None, feed(runtime, inputs))
            for form, runtime in sessions.items()
        }
        latencies += [Latency(*name, batch, time) for name, time in interleaved(works, repetitions).items()]
    return latencies, remarks


def _onnx(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        to_onnx(network, path, example)
        return session(path)

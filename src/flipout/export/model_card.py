"""The model card: the measured weights, bytes, multiply-adds, memory and latencies of a network, and their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..text_table import table
from .file_sizes import format_bytes
from .speed.interleaved_timing import Timing, format_milliseconds

if TYPE_CHECKING:
    from rich.table import Table

DENSE_IN_PYTORCH = ("dense", "PyTorch")
"""The form and runtime that all latencies are compared with."""
GPU_REMARK = (
    "A GPU is not faster with zeros that are scattered over a dense tensor: use the compacted network there. The "
    "accelerated network is for the CPU that it was measured on."
)
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

    @property
    def sections(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Two tables as (head, rows): counts, and latencies."""
        return [
            ((self.network, "", ""), self._count_rows()),
            (("latency", "batch", "median ms", "quartiles", "speedup"), self._latency_rows()),
        ]

    def _count_rows(self) -> list[Sequence[str]]:
        def bytes_row(label: str, size: int, dense: int) -> Sequence[str]:
            return label, format_bytes(size), _reduction(size, dense)

        def count_row(label: str, count: int, dense: int) -> Sequence[str]:
            return label, f"{count:,}", _reduction(count, dense)

        bytes_, operations, memory = self.file_dense, self.multiply_adds_dense, self.activations_dense
        return [
            ("prunable weights", f"{self.prunable:,}", ""),
            ("nonzero weights (nominal)", f"{self.nonzero:,}", _sparsity(self.nonzero, self.prunable)),
            ("weights on a live path (effective)", f"{self.effective:,}", _sparsity(self.effective, self.prunable)),
            bytes_row("file, dense safetensors", bytes_, bytes_),
            bytes_row("file, sparse", self.file_sparse, bytes_),
            bytes_row("file, compacted safetensors", self.file_compacted, bytes_),
            count_row("multiply-adds, dense", operations, operations),
            count_row("multiply-adds, nonzero weights", self.multiply_adds_nonzero, operations),
            count_row("multiply-adds, compacted", self.multiply_adds_compacted, operations),
            bytes_row("peak activations, dense", memory, memory),
            bytes_row("peak activations, compacted", self.activations_compacted, memory),
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


def _sparsity(part: int, whole: int) -> str:
    return f"{1 - part / whole:.4%} zeros" if whole else ""


def _reduction(part: int, whole: int) -> str:
    return f"{whole / part:,.1f} times less" if part and whole != part else ""

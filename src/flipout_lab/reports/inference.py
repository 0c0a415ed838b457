"""The milliseconds of inference against sparsity: the networks of finished runs, measured when a report is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from flipout.export import accelerate, compact
from flipout.export.timing import time_interleaved

from ..runs.networks import load_run
from ..runs.run_folder import network_shape
from .charts import Lines, Style, curve_of
from .records import Record, grouped
from .seed_statistics import Cell

BATCH = 1000
REPETITIONS = 30
DENSE = "Dense"
STYLES = {"Compacted": Style("#009e73", "dash", "square"), "Accelerated": Style("#0072b2")}


def inference_chart(runs: Sequence[Record], folder: Path) -> Lines:
    """The latency of the networks of these runs, compacted and accelerated, beside that of the dense ones.

    One thread, because several threads wait for each other on a busy machine.
    """
    by_sparsity, threads = grouped(runs, lambda run: run.settings.sparsity), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = {s: [_latencies(folder / run.name) for run in by_sparsity[s]] for s in sorted(by_sparsity)}
    finally:
        torch.set_num_threads(threads)
    curves = tuple(
        curve_of(form, style, [(1 - s, Cell(tuple(each[form] for each in times[s]))) for s in times])
        for form, style in STYLES.items()
    )
    dense = Cell(tuple(each[DENSE] for group in times.values() for each in group)).mean
    axes = "weights pruned (log scale)", f"milliseconds for {BATCH:,} images"
    return Lines(curves, *axes, "ms", dense, over_density=True, from_zero=True)


@torch.no_grad()
def _latencies(folder: Path) -> dict[str, float]:
    """The median milliseconds of each form of the network of a run."""
    model, (shape, _) = load_run(folder), network_shape(folder)
    images = torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))
    forms = {DENSE: model, "Compacted": compact(model, images), "Accelerated": accelerate(model, images)}
    calls = {name: (lambda form=form: form(images)) for name, form in forms.items()}
    return {name: timing.median for name, timing in time_interleaved(calls, REPETITIONS).items()}

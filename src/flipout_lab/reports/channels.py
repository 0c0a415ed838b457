"""Networks pruned in whole channels, beside dense networks of the same size: the control that pruning has to beat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from flipout.export import compact
from flipout.export.timing import time_interleaved

from ..models import build
from ..runs.method_options import method_title
from ..runs.networks import load_run
from ..runs.run_folder import MODEL, network_shape
from ..tables import Table, bold_if
from .labels import network_key, network_title
from .records import Record, Records, grouped
from .seed_statistics import cell_of

PART = "channels"
"""The part of a grid whose runs are pruned in channels, or are dense and of other widths."""

BATCH, REPETITIONS = 32, 20
HEADING = (
    "multiply-adds",
    "method",
    "seeds",
    "left",
    "time of a call",
    "accuracy",
    "minus a dense network of its size",
)
NOTES = (
    "Multiply-adds left: those with weights, as a share of the whole network. The time of a call is that of the "
    f"compacted network on one thread, with {BATCH} images, as a share of that of the whole network in the same run. "
    "The dense networks have fewer channels in every layer, and were trained from scratch for as many epochs.",
)
DENSE = "Dense, trained at this size"
NAMES = {0.5: "a half", 0.25: "a quarter", 0.125: "an eighth"}


def networks_in_channels(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The finished runs of the part, by network; those of a network may differ in their width."""
    finished = [run for run in runs if PART in run.parts and run.accuracy is not None]
    groups = grouped(finished, lambda run: tuple(pair for pair in network_key(run.settings) if pair[0] != "width"))
    whole = {network_title(_widest(group).settings): group for group in groups.values()}
    return {title: group for title, group in whole.items() if any(run.is_pruned for run in group)}


def by_size(runs: Sequence[Record]) -> dict[tuple[float, str], list[Record]]:
    """The runs of a network by the share of its multiply-adds that they were to keep, and by what was done.

    A dense network counts to the share that is closest to its own.
    """
    levels = sorted({1 - s for run in runs if run.is_pruned and (s := run.settings.sparsity) is not None}, reverse=True)
    total = _multiply_adds(_widest(runs))[0]

    def level(run: Record) -> float:
        if run.is_pruned and run.settings.sparsity is not None:
            return 1 - run.settings.sparsity
        return min((1.0, *levels), key=lambda each: abs(math.log(each / _share(run, total))))

    groups = grouped(runs, lambda run: (level(run), _label(run)))
    return dict(sorted(groups.items(), key=lambda group: -group[0][0]))


def channels_table(title: str, runs: Sequence[Record]) -> Table:
    """One row for each method and size: what is left, the time of a call, the accuracy, and minus a dense network."""
    sized, total = by_size(runs), _multiply_adds(_widest(runs))[0]
    rows = []
    for (size, label), group in sized.items():
        cell = cell_of(group)
        difference = cell.minus(cell_of(sized.get((size, DENSE), [])))
        times = [each for run in group if (each := (run.result or {}).get("call_time")) is not None]
        rows.append(
            [
                NAMES.get(size, "all" if size == 1 else f"{size:.3g}"),
                label,
                str(cell.seeds),
                f"{fmean(_share(run, total) for run in group):.1%}",
                f"{fmean(times):.2f}" if times else "",
                str(cell),
                bold_if(difference, difference.is_significant) if label != DENSE and difference.values else "",
            ]
        )
    return Table(title, HEADING, rows, NOTES, texts=(0, 1))


def with_call_times(records: Records, folder: Path) -> Records:
    """The same runs; those of the part whose networks are in the folder get the time of a call."""
    width = max((run.settings.width for run in records.in_part(PART)), default=1.0)

    def timed(run: Record) -> Record:
        if PART not in run.parts or run.result is None or not (folder / run.name / MODEL).exists():
            return run
        return replace(run, result={**run.result, "call_time": call_time(folder / run.name, run, width)})

    return replace(records, runs=tuple(map(timed, records.runs)))


@torch.no_grad()
def call_time(folder: Path, run: Record, width: float) -> float:
    """The time of a call of the compacted network, as a share of that of the network with all channels."""
    shape, classes = network_shape(folder)
    images = torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))
    whole, own = build(run.settings.model, shape, classes, width).eval(), load_run(folder)
    small = compact(own, images) if run.is_pruned else own
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = time_interleaved({"whole": lambda: whole(images), "small": lambda: small(images)}, REPETITIONS)
    finally:
        torch.set_num_threads(threads)
    return times["small"].median / times["whole"].median


def _widest(runs: Sequence[Record]) -> Record:
    return max(runs, key=lambda run: run.settings.width)


def _multiply_adds(run: Record) -> tuple[int, int]:
    """Those of the whole network and those with kept weights, of one image."""
    counts = (run.result or {})["multiply_adds"]
    return counts["dense"], counts["nonzero"]


def _share(run: Record, total: int) -> float:
    dense, kept = _multiply_adds(run)
    return (kept if run.is_pruned else dense) / total


def _label(run: Record) -> str:
    if not run.is_pruned:
        return DENSE
    layers = ", the same share of every layer" if run.settings.option("scope") == "layer" else ""
    return f"{method_title(run.settings.method)}{layers}"

"""Granularities at equal multiply-adds: a channel that is pruned saves other multiply-adds than a scattered weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from .labels import label_runs
from .records import Record
from .report_tables import ReportTable, TableEntry

LEVELS = tuple(2.0**-i for i in range(1, 11))
"""The shares of the dense network's multiply-adds that are compared: a half, a quarter, an eighth, ..."""

CLOSE = 1.02
"""Points within this factor count as equal."""

NOTE = (
    "Accuracies in percent at a share of the dense network's multiply-adds. Multiply-adds with a zero weight do not "
    "count, wherever the zero is. Interpolated on log multiply-adds between the sparsities of a method; empty outside "
    "of them."
)


def multiply_add_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Methods by their share of multiply-adds; None unless the runs differ in granularity."""
    if len({run.settings.option("granularity") for run in runs if run.settings.method != "dense"}) < 2:
        return None
    curves = _curves(runs)
    columns = [level for level in LEVELS if any(accuracy_at(curve, level) is not None for curve in curves.values())]
    if not columns:
        return None
    rows = [
        (TableEntry(label), *(TableEntry(_text(accuracy_at(curve, level))) for level in columns))
        for label, curve in curves.items()
    ]
    return ReportTable(title, ("method", *(f"{level:.3%}" for level in columns)), tuple(rows), (NOTE,))


def accuracy_at(curve: Mapping[float, float], share: float) -> float | None:
    """The accuracy at a share of the multiply-adds, linear in its logarithm between two points; None outside.

    A point that is as good as there counts itself: whole units rarely leave exactly a half.
    """
    nearest = min(curve, key=lambda point: abs(math.log(point / share)))
    if abs(math.log(nearest / share)) <= math.log(CLOSE):
        return curve[nearest]
    below = max((point for point in curve if point <= share), default=None)
    above = min((point for point in curve if point >= share), default=None)
    if below is None or above is None:
        return None
    place = math.log(share / below) / math.log(above / below)
    return curve[below] + place * (curve[above] - curve[below])


def _curves(runs: Sequence[Record]) -> dict[str, dict[float, float]]:
    """For each method, the mean accuracy in percent by the mean share of multiply-adds, one point for a sparsity."""
    labels = label_runs(runs)
    points: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for run in runs:
        counted = None if run.result is None else run.result.get("multiply_adds")
        if counted and run.accuracy is not None and run.settings.sparsity and run.settings.method != "dense":
            share = counted["nonzero"] / counted["dense"]
            own = points.setdefault(labels[run.name], {}).setdefault(run.settings.sparsity, [])
            own.append((share, 100 * run.accuracy))
    return {
        label: {fmean(s for s, _ in each): fmean(a for _, a in each) for each in own.values()}
        for label, own in points.items()
    }


def _text(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"

"""Accuracy against hours: methods at equal time, from runs that differ in their epochs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..tables import Table, bold_if
from .charts import Lines, curve_of, styles
from .labels import label_runs, network_key, network_name, percent
from .records import Record, grouped
from .seed_statistics import Cell, cell_of, log_linear

PART = "equal time"
"""The part of a grid whose runs differ in their epochs."""

REFERENCE = "FlipOut"
"""The method whose longest training sets the time at which the others are compared."""

TOLERANCE = 0.1
"""How much shorter or longer a training may take and still count as just as long."""

Points = Mapping[float, Cell]
"""The accuracies of a method by the hours that it took: one point for each number of epochs."""


def networks_at_equal_time(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of the part, by network, at the sparsities where all are finished; they may differ in their epochs."""
    planned = [run for run in runs if PART in run.parts]
    missing = {_network_and_sparsity(run) for run in planned if run.accuracy is None and not run.failure}
    finished = [run for run in planned if run.accuracy is not None and _network_and_sparsity(run) not in missing]
    groups = grouped(finished, lambda run: _network_and_sparsity(run)[0])
    return {network_name(group[0].settings): _timed_alike(group) for group in groups.values()}


def _timed_alike(runs: list[Record]) -> list[Record]:
    """The runs with a time of the processor, or all of them if none has one: other times cannot be compared."""
    return [run for run in runs if _processor_seconds(run) is not None] or runs


def _processor_seconds(run: Record) -> float | None:
    return (run.result or {}).get("processor_seconds")


def _network_and_sparsity(run: Record) -> tuple[tuple[tuple[str, Any], ...], float | None]:
    return tuple(pair for pair in network_key(run.settings) if pair[0] != "epochs"), run.settings.sparsity


def pruned_shares(runs: Iterable[Record]) -> list[float]:
    """The sparsities of the runs, without that of the dense network."""
    return sorted({run.settings.sparsity for run in runs if run.is_pruned and run.settings.sparsity is not None})


def time_chart(runs: Sequence[Record], sparsity: float) -> Lines:
    """Accuracy against hours at one sparsity, with the dense network; one point for each number of epochs."""
    style = styles(runs)
    curves = (curve_of(label, style[label], list(points.items())) for label, points in _points(runs, sparsity).items())
    return Lines(tuple(curves), "hours of training on one core", "accuracy, last epoch (%)")


def equal_time_table(title: str, runs: Sequence[Record]) -> Table | None:
    """The accuracy of every method at the time that FlipOut's longest training takes; None if FlipOut was not run.

    A training that takes just as long counts as it is. Between two numbers of epochs the accuracy is interpolated for
    each seed. It is never extrapolated.
    """
    rows = []
    for sparsity in pruned_shares(runs):
        methods = _points(runs, sparsity)
        if REFERENCE not in methods:
            continue
        hours, reference = list(methods[REFERENCE].items())[-1]
        for label, points in methods.items():
            cell = at_time(points, hours)
            difference = cell.minus(reference)
            compared = label != REFERENCE and difference.values
            shown = bold_if(difference, difference.is_significant) if compared else ""
            reached = str(cell) if cell.values else "not reached"
            taken = ", ".join(f"{60 * each:.1f}" for each in points)
            rows.append([label, percent(sparsity), taken, str(cell.seeds), reached, shown])
    heading = ("method", "pruned", "minutes", "seeds", "accuracy", "minus FlipOut")
    notes = (
        f"A training counts as just as long as FlipOut's if its time differs by at most {TOLERANCE:.0%}. Between two "
        "numbers of epochs the accuracy is interpolated, linearly in the logarithm of the time.",
    )
    return Table(title, heading, rows, notes) if rows else None


def at_time(points: Points, hours: float) -> Cell:
    """The accuracies of a method at a time, one for each seed whose trainings are shorter and longer, or just as long.

    Linear in the logarithm of the time.
    """
    found = dict[int, float]()
    for seed in sorted({seed for cell in points.values() for seed in cell.by_seed}):
        own = {time: cell.by_seed[seed] for time, cell in points.items() if seed in cell.by_seed}
        at = min(max(hours, min(own)), max(own))
        if abs(at / hours - 1) <= TOLERANCE and (accuracy := log_linear(own, at)) is not None:
            found[seed] = accuracy
    return Cell(tuple(found.values()), tuple(found))


def _points(runs: Sequence[Record], sparsity: float) -> dict[str, Points]:
    """The points of every method at a sparsity and of the dense network, by label, the shortest training first."""
    labels = label_runs(runs)
    shown = [run for run in runs if run.settings.sparsity == sparsity or not run.is_pruned]
    found = dict[str, Points]()
    for label, group in grouped(shown, lambda run: labels[run.name]).items():
        lengths = grouped(group, lambda run: run.settings.total_epochs)
        found[label] = {_hours(lengths[epochs]): cell_of(lengths[epochs]) for epochs in sorted(lengths)}
    return found


def _hours(runs: Sequence[Record]) -> float:
    """The hours of the processor, the mean over seeds. Other work on the machine changes them little."""
    seconds = [time for run in runs if (time := _processor_seconds(run)) is not None]
    return statistics.fmean(seconds or ((run.result or {})["seconds"] for run in runs)) / 3600

"""The tables of a report: accuracies, differences to global magnitude, equal multiply-adds, dead layers, shots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from ..tables import Table, bold_if
from .labels import label_runs, percent
from .records import Record, grouped
from .seed_statistics import (
    Cell,
    PairedDifference,
    best,
    by_option,
    cell_of,
    cells,
    dense_cell,
    level_with_best,
    log_linear,
    shot_shares,
    sparsities,
)

BOLD = (
    "Bold: the highest mean. ≈: not significantly lower than that, because the 95 % interval of the difference, paired "
    "by seed, contains 0, or there are too few seeds."
)
INTERPOLATED = (
    "†: the sparsity of this method is an outcome; its accuracy is interpolated on log density between its best runs."
)
PAIRED_NOTE = (
    "Accuracy minus that of global magnitude with the same seed, schedule and training, in points: the mean over seeds "
    "and its 95 % confidence interval (Student's t). Bold: the interval does not contain 0. A method without a "
    "schedule (SNIP) is compared with magnitude under our schedule if that was run, or else under the paper's."
)
DEAD_NOTE = (
    "The number of runs in which a layer lost its last weight, and the layers. Methods that are not listed have no "
    "dead layer in any finished run."
)
SHOTS_NOTE = "Over-shoots in percent of all shots at zero, over all steps and weights. All others are under-shoots."
EQUAL_NOTE = (
    "Accuracies in percent at a share of the dense network's multiply-adds. Multiply-adds with a zero weight do not "
    "count, wherever the zero is. Interpolated on log multiply-adds between the sparsities of a method; empty outside "
    "of them."
)
LEVELS = tuple(2.0**-i for i in range(1, 11))
"""The shares of the dense network's multiply-adds that are compared: a half, a quarter, an eighth, ..."""

CLOSE = 1.02
"""Points within this factor count as equal."""

MISSING = Cell(())


def by_sparsity(
    title: str, rows: Mapping[str, Mapping[float, str]], *notes: str, first: str = "method", absent: str = "missing"
) -> Table:
    """A table with one row for each label and one column for each sparsity."""
    columns = sparsities(rows)
    entries = [[label, *(row.get(sparsity, absent) for sparsity in columns)] for label, row in rows.items()]
    return Table(title, (first, *map(percent, columns)), entries, notes)


def accuracy_table(title: str, runs: Sequence[Record]) -> Table:
    """Methods by sparsity, as in the paper: mean and standard deviation over seeds."""
    found = cells(runs)
    columns = {s: {label: row[s] for label, row in found.items() if s in row} for s in sparsities(found)}
    compared = {s: _compared(column) for s, column in columns.items()}
    rows = {label: {s: compared[s][label] for s in row} for label, row in found.items()}
    if (reference := dense_cell(runs)) is not None:
        rows["Dense (not pruned)"] = dict.fromkeys(columns, str(reference))
    interpolated = any(cell.interpolated for row in found.values() for cell in row.values())
    return by_sparsity(title, rows, *([BOLD] if len(found) > 1 else []), *([INTERPOLATED] if interpolated else []))


def _compared(column: Mapping[str, Cell]) -> dict[str, str]:
    """The entries of a column: the best is bold, and those that it does not significantly beat are marked."""
    top, level = best(column), level_with_best(column)
    return {label: bold_if(f"{cell}{' ≈' if label in level else ''}", label == top) for label, cell in column.items()}


def paired_differences(runs: Sequence[Record]) -> dict[str, dict[float, PairedDifference]]:
    """Every method against permanent global magnitude, by label and sparsity, over the seeds that both have."""
    labels, found = label_runs(runs), dict[str, dict[float, PairedDifference]]()
    compared = [run for run in runs if run.settings.sparsity is not None and run.is_pruned and not is_reference(run)]
    for (label, sparsity), group in grouped(compared, lambda run: (labels[run.name], run.settings.sparsity)).items():
        references = [run for run in runs if is_reference(run) and run.settings.sparsity == sparsity]
        difference = cell_of(group).minus(_reference(group[0], references))
        if difference.values and sparsity is not None:
            found.setdefault(label, {})[sparsity] = difference
    return found


def paired_table(title: str, runs: Sequence[Record]) -> Table | None:
    """Methods by sparsity: the difference to global magnitude. None if nothing can be compared with it."""
    found = paired_differences(runs)
    rows = {label: {s: bold_if(each, each.is_significant) for s, each in row.items()} for label, row in found.items()}
    return by_sparsity(title, rows, PAIRED_NOTE, first="minus global magnitude", absent="") if rows else None


def is_reference(run: Record) -> bool:
    """Whether a run is global magnitude as it is: permanent, without noise, under any schedule."""
    return run.settings.method == "magnitude" and run.settings.given_options.keys() <= {"schedule"}


def _reference(run: Record, references: Sequence[Record]) -> Cell:
    """Global magnitude under the schedule of a run. For a method without a schedule: under ours, or the paper's."""
    schedule = run.settings.option("schedule")
    for kind in ("default", "paper") if schedule is None else (schedule,):
        cell = cell_of([each for each in references if each.settings.option("schedule") == kind])
        if cell.values:
            return cell
    return MISSING


def dead_table(title: str, runs: Sequence[Record]) -> Table | None:
    """In how many runs a layer died, and which layers; None if no layer died."""
    found, labels = cells(runs), label_runs(runs)
    columns = sparsities(found)
    rows = [
        [label, *(_dead(row.get(s, MISSING)) for s in columns)]
        for label, row in found.items()
        if any(cell.runs_with_dead_layers for cell in row.values())
    ]
    died = [run for run in runs if run.settings.sparsity is None and run.result and run.result["dead_layers"]]
    for label, group in grouped(died, lambda run: labels[run.name]).items():
        names = sorted({name for run in group if run.result for name in run.result["dead_layers"]})
        entry = f"{len(group)} runs: {', '.join(names[:3])}"
        rows.append([f"{label}, at any sparsity", entry, *[""] * (len(columns) - 1)])
    heading = ("method", *(map(percent, columns) if columns else ("runs with a dead layer",)))
    return Table(title, heading, rows, (DEAD_NOTE,)) if rows else None


def _dead(cell: Cell) -> str:
    if not cell.runs_with_dead_layers:
        return "" if cell.values else "missing"
    names = sorted(set(cell.dead_layers))
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{cell.runs_with_dead_layers} of {cell.seeds}: {listed}"


def shots_table(title: str, runs: Sequence[Record]) -> Table | None:
    """Over-shoots in percent of all shots at zero; None if no run used the aim test."""
    rows = {label: {s: str(cell) for s, cell in row.items()} for label, row in shot_shares(runs).items()}
    return by_sparsity(title, rows, SHOTS_NOTE) if rows else None


def best_value_table(title: str, networks: Mapping[str, Sequence[Record]]) -> Table:
    """The paper's Table 2: the best scale of the noise, and its gain over a scale of 1."""
    scans = {network: by_option(runs, "noise") for network, runs in networks.items()}
    columns = sorted({sparsity for scan in scans.values() for _, sparsity in scan})
    heading, rows = ["network"], []
    for sparsity in columns:
        heading += [f"{percent(sparsity)}: best λ", f"{percent(sparsity)}: λ = 1"]
    for network, scan in scans.items():
        row = [network]
        for sparsity in columns:
            column = {value: cell for (value, s), cell in scan.items() if s == sparsity and cell.values}
            if not column:
                row += ["missing", "missing"]
                continue
            top = max(column, key=lambda value: column[value].mean)
            ours = column.get(1.0, MISSING)
            gain = f", {column[top].mean - ours.mean:+.2f}" if ours.values else ""
            row += [f"{column[top]} (λ = {top:g}{gain})", str(ours)]
        rows.append(row)
    return Table(title, heading, rows)


def power_table(title: str, networks: Mapping[str, Sequence[Record]]) -> Table:
    """The paper's Table 3: powers of the magnitude at two sparsities."""
    scans, rows = {network: by_option(runs, "p") for network, runs in networks.items()}, []
    columns = sorted({key for scan in scans.values() for key in scan}, key=lambda key: (key[1], key[0]))
    for network, scan in scans.items():
        row = [network]
        for value, sparsity in columns:
            column = _compared({f"{v:g}": cell for (v, s), cell in scan.items() if s == sparsity})
            row.append(column.get(f"{value:g}", str(MISSING)))
        rows.append(row)
    heading = ("network", *(f"{percent(s)}: p = {value:g}" for value, s in columns))
    return Table(title, heading, rows, (BOLD,))


def multiply_add_table(title: str, runs: Sequence[Record]) -> Table | None:
    """Methods by their share of multiply-adds; None unless the runs differ in granularity.

    A channel that is pruned saves other multiply-adds than a scattered weight.
    """
    if len({run.settings.option("granularity") for run in runs if run.is_pruned}) < 2:
        return None
    curves = _multiply_add_curves(runs)
    found = {label: {level: accuracy_at(curve, level) for level in LEVELS} for label, curve in curves.items()}
    columns = [level for level in LEVELS if any(row[level] is not None for row in found.values())]
    if not columns:
        return None
    rows = [
        [label, *("" if (accuracy := row[level]) is None else f"{accuracy:.2f}" for level in columns)]
        for label, row in found.items()
    ]
    return Table(title, ("method", *(f"{level:.3%}" for level in columns)), rows, (EQUAL_NOTE,))


def accuracy_at(curve: Mapping[float, float], share: float) -> float | None:
    """The accuracy at a share of the multiply-adds, linear in its logarithm between two points; None outside.

    A point that is as good as there counts itself: whole units rarely leave exactly a half.
    """
    nearest = min(curve, key=lambda point: abs(math.log(point / share)))
    if abs(math.log(nearest / share)) <= math.log(CLOSE):
        return curve[nearest]
    return log_linear(curve, share)


def _multiply_add_curves(runs: Sequence[Record]) -> dict[str, dict[float, float]]:
    """For each method, the mean accuracy in percent by the mean share of multiply-adds, one point for a sparsity."""
    labels, curves = label_runs(runs), dict[str, dict[float, float]]()
    pruned = [run for run in runs if run.is_pruned and run.settings.sparsity and run.accuracy is not None]
    measured = [run for run in pruned if run.result and run.result.get("multiply_adds")]
    for (label, _), group in grouped(measured, lambda run: (labels[run.name], run.settings.sparsity)).items():
        counts = [run.result["multiply_adds"] for run in group if run.result]
        share = fmean(count["nonzero"] / count["dense"] for count in counts)
        curves.setdefault(label, {})[share] = fmean(100 * (run.accuracy or 0.0) for run in group)
    return curves

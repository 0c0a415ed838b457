"""Differences between a method and global magnitude, paired by seed, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

from .confidence_intervals import PairedDifference
from .labels import label_runs, percent
from .records import Record
from .report_tables import ReportTable, TableEntry
from .seed_statistics import Cell, cell_of

PAIRED_NOTE = (
    "Accuracy minus that of global magnitude with the same seed, schedule and training, in points: the mean over seeds "
    "and its 95 % confidence interval (Student's t). Bold: the interval does not contain 0. A method without a "
    "schedule (SNIP) is compared with magnitude under our schedule if that was run, or else under the paper's."
)


def paired_differences(runs: Sequence[Record]) -> dict[str, dict[float, PairedDifference]]:
    """Every method against global magnitude for good, by label and sparsity, over the seeds that both have."""
    labels, groups = label_runs(runs), dict[tuple[str, float], list[Record]]()
    for run in runs:
        if run.settings.sparsity is not None and run.settings.method != "dense" and not is_reference(run):
            groups.setdefault((labels[run.name], run.settings.sparsity), []).append(run)
    found: dict[str, dict[float, PairedDifference]] = {}
    for (label, sparsity), group in groups.items():
        references = [run for run in runs if is_reference(run) and run.settings.sparsity == sparsity]
        difference = cell_of(group).minus(_reference(group[0], references))
        if difference.values:
            found.setdefault(label, {})[sparsity] = difference
    return found


def paired_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Methods by sparsity: the difference to global magnitude. None if nothing can be compared with it."""
    differences = paired_differences(runs)
    columns = sorted({sparsity for row in differences.values() for sparsity in row})
    if not columns:
        return None
    rows = [
        (
            TableEntry(label),
            *(TableEntry(str(row[s]), row[s].is_shown) if s in row else TableEntry("") for s in columns),
        )
        for label, row in differences.items()
    ]
    return ReportTable(title, ("minus global magnitude", *map(percent, columns)), tuple(rows), (PAIRED_NOTE,))


def is_reference(run: Record) -> bool:
    """Whether a run is global magnitude as it is: for good, without noise, under any schedule."""
    return run.settings.method == "magnitude" and run.settings.given_options.keys() <= {"schedule"}


def _reference(run: Record, references: Sequence[Record]) -> Cell:
    """Global magnitude under the schedule of a run. For a method without a schedule: under ours, or the paper's."""
    schedule = run.settings.option("schedule")
    for kind in ("default", "paper") if schedule is None else (schedule,):
        cell = cell_of([each for each in references if each.settings.option("schedule") == kind])
        if cell.values:
            return cell
    return Cell(())

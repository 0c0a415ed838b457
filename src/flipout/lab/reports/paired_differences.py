"""Differences between a method and global magnitude, paired by seed, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .confidence_intervals import PairedDifference
from .labels import label_runs, percent
from .records import Record
from .report_tables import ReportTable, TableEntry

PAIRED_NOTE = (
    "Accuracy minus that of global magnitude with the same seed, schedule and training, in points: the mean over seeds "
    "and its 95 % confidence interval (Student's t). Bold: the interval does not contain 0. A method without a "
    "schedule (SNIP) is compared with magnitude under our schedule if that was run, or else under the paper's."
)


def paired_differences(runs: Sequence[Record]) -> dict[str, dict[float, PairedDifference]]:
    """Every method against global magnitude for good, by label and sparsity, over the seeds that both have."""
    labels = label_runs(runs)
    references = {_place(run): accuracy for run in runs if is_reference(run) and (accuracy := run.accuracy) is not None}
    found: dict[str, dict[float, dict[int, float]]] = {}
    for run in runs:
        if run.accuracy is None or run.settings.sparsity is None or is_reference(run):
            continue
        if (reference := _reference(run, references)) is not None:
            by_seed = found.setdefault(labels[run.name], {}).setdefault(run.settings.sparsity, {})
            by_seed[run.settings.seed] = 100 * (run.accuracy - reference)
    return {
        label: {sparsity: PairedDifference(tuple(by_seed.values())) for sparsity, by_seed in row.items()}
        for label, row in found.items()
    }


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


def _reference(run: Record, references: Mapping[tuple[object, ...], float]) -> float | None:
    """The accuracy of global magnitude that a run is compared with."""
    schedule, *rest = _place(run)
    possible = ("default", "paper") if schedule is None else (schedule,)
    return next((references[kind, *rest] for kind in possible if (kind, *rest) in references), None)


def _place(run: Record) -> tuple[object, ...]:
    settings = run.settings
    return settings.option("schedule"), settings.sparsity, settings.seed

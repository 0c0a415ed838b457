"""Differences between a method and global magnitude, paired by seed, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .labels import label_runs, percent
from .records import Record
from .report_tables import ReportTable, TableEntry

CONFIDENCE = 0.95

NOTE = (
    "Accuracy minus that of global magnitude with the same seed, schedule and training, in points: the mean over seeds "
    "and its 95 % confidence interval (Student's t). Bold: the interval does not contain 0."
)


@dataclass(frozen=True)
class PairedDifference:
    """Differences of two methods, one for each seed that both have."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean; None with fewer than two seeds."""
        from scipy.stats import t

        number = len(self.values)
        if number < 2:
            return None
        quantile = float(t.ppf((1 + CONFIDENCE) / 2, number - 1))
        half = quantile * statistics.stdev(self.values) / math.sqrt(number)
        return self.mean - half, self.mean + half

    @property
    def is_shown(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.mean:+.2f} (one seed)"
        low, high = self.interval
        return f"{self.mean:+.2f} ({low:+.2f} to {high:+.2f})"


def paired_differences(runs: Sequence[Record]) -> dict[str, dict[float, PairedDifference]]:
    """Every method against global magnitude for good, by label and sparsity, over the seeds that both have."""
    labels = label_runs(runs)
    reference = {_place(run): accuracy for run in runs if _is_reference(run) and (accuracy := run.accuracy) is not None}
    found: dict[str, dict[float, dict[int, float]]] = {}
    for run in runs:
        if run.accuracy is None or run.settings.sparsity is None or _is_reference(run) or _place(run) not in reference:
            continue
        by_seed = found.setdefault(labels[run.name], {}).setdefault(run.settings.sparsity, {})
        by_seed[run.settings.seed] = 100 * (run.accuracy - reference[_place(run)])
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
    return ReportTable(title, ("minus global magnitude", *map(percent, columns)), tuple(rows), (NOTE,))


def _is_reference(run: Record) -> bool:
    return run.settings.method == "magnitude" and run.settings.given_options.keys() <= {"schedule"}


def _place(run: Record) -> tuple[object, ...]:
    settings = run.settings
    return settings.option("schedule"), settings.sparsity, settings.seed

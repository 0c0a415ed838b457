"""Means and standard deviations over seeds, and the rule for when two methods differ."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from .labels import counted, label_runs, scanned_option
from .records import Record, grouped

CONFIDENCE = 0.95
FEWEST = 3
"""The fewest values that have an interval. With two, a spread that is small by chance would decide."""


@cache
def _quantile(degrees_of_freedom: int) -> float:
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class PairedDifference:
    """Differences of two methods, one for each seed that both have."""

    values: tuple[float, ...]
    rejected: bool = False  # not significant among the comparisons that it was made together with; see `holm`

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean by Student's t distribution; None with fewer than three seeds."""
        number = len(self.values)
        if number < FEWEST:
            return None
        half = _quantile(number - 1) * statistics.stdev(self.values) / math.sqrt(number)
        return self.mean - half, self.mean + half

    @property
    def p_value(self) -> float:
        """How likely a mean this far from 0 is by chance: the t-test of two sides; 1 with fewer than three seeds."""
        from scipy.special import stdtr

        if len(self.values) < FEWEST:
            return 1.0
        error = statistics.stdev(self.values) / math.sqrt(len(self.values))
        if error == 0:
            return float(self.mean == 0)
        return 2 * float(stdtr(len(self.values) - 1, -abs(self.mean) / error))

    @property
    def is_significant(self) -> bool:
        return self.is_positive or self.is_negative

    @property
    def is_positive(self) -> bool:
        return self.interval is not None and self.interval[0] > 0 and not self.rejected

    @property
    def is_negative(self) -> bool:
        return self.interval is not None and self.interval[1] < 0 and not self.rejected

    def __str__(self) -> str:
        if not self.values:
            return "no common seed"
        if self.interval is None:
            return f"{self.mean:+.2f} ({'one seed' if len(self.values) == 1 else 'two seeds'})"
        low, high = self.interval
        # An end that is close to 0 shows on which side it is.
        digits = 2 if min(abs(low), abs(high)) >= 0.005 or low == high else 3
        return f"{self.mean:+.2f} ({low:+.{digits}f} to {high:+.{digits}f})"


def holm(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """The same differences, corrected for their number: with 95 % confidence none of them is significant by chance.

    Holm's method: the k-th smallest of n p-values must be below 5 % / (n - k + 1), and so must all before it.
    Comparisons with fewer than three seeds decide nothing, and do not count.
    """
    tested = [number for number, each in enumerate(differences) if each.interval is not None]
    corrected, rejected = list(differences), False
    for rank, number in enumerate(sorted(tested, key=lambda number: differences[number].p_value)):
        rejected |= differences[number].p_value > (1 - CONFIDENCE) / (len(tested) - rank)
        corrected[number] = replace(differences[number], rejected=rejected)
    return corrected


@dataclass(frozen=True)
class Cell:
    """The values of one method at one sparsity, usually accuracies in percent, one for each seed that finished."""

    values: tuple[float, ...]
    seed_numbers: tuple[int, ...] = ()  # the seed of each value; without them, seeds are numbered from 0
    failed: int = 0
    missing: int = 0  # seeds that are planned, and have neither a result nor a failure
    interpolated: bool = False
    dead_layers: tuple[str, ...] = ()  # over all runs; a layer that died in two runs is listed twice
    runs_with_dead_layers: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation; None with a single seed, which does not define one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seed_numbers or range(self.seeds), self.values, strict=True))

    def minus(self, other: Cell) -> PairedDifference:
        """The differences to another cell, over the seeds that both have."""
        one, two = self.by_seed, other.by_seed
        return PairedDifference(tuple(one[seed] - two[seed] for seed in one if seed in two))

    def at(self, seeds: Collection[int]) -> Cell:
        kept = {seed: value for seed, value in self.by_seed.items() if seed in seeds}
        return replace(self, values=tuple(kept.values()), seed_numbers=tuple(kept))

    def __str__(self) -> str:
        if not self.values:
            absent = "not reached" if self.interpolated and not self.missing else "missing"
            return f"{self.failed} failed" if self.failed else absent
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        mark = " †" if self.interpolated else ""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.mean:.2f}{spread}{mark}{failed}"


def cells(runs: Sequence[Record]) -> dict[str, dict[float, Cell]]:
    """The cells of a table, by label and sparsity.

    A method whose sparsity is an outcome is interpolated at the sparsities of the other methods.
    """
    labels = label_runs(runs)
    if (scan := scanned_option(runs)) is not None:  # sorted by method and value
        methods = list(dict.fromkeys(run.settings.method for run in runs))
        runs = sorted(runs, key=lambda run: (methods.index(run.settings.method), run.settings.option(scan) or 0))
    requested = sorted({run.settings.sparsity for run in runs if run.settings.sparsity} - {0.0})
    rows: dict[str, dict[float, Cell]] = {}
    for label, group in grouped(runs, lambda run: labels[run.name] if run.is_pruned else None).items():
        by_sparsity = grouped(group, lambda run: run.settings.sparsity)
        rows[label] = {sparsity: cell_of(by_sparsity[sparsity]) for sparsity in sorted(by_sparsity)}
        if not by_sparsity:
            rows[label] = {sparsity: _interpolated(group, sparsity) for sparsity in requested}
    return dict(sorted(rows.items(), key=lambda row: any(cell.interpolated for cell in row[1].values())))


def dense_cell(runs: Iterable[Record]) -> Cell | None:
    """The accuracy of the dense network; None if it was not run."""
    dense = [run for run in runs if not run.is_pruned]
    return cell_of(dense) if dense else None


def cell_of(runs: Sequence[Record]) -> Cell:
    """The cell of runs that differ in their seed alone."""
    finished = one_per_seed([run for run in runs if run.result is not None])
    dead = [run.result["dead_layers"] for run in finished if run.result and run.result["dead_layers"]]
    ended = {run.settings.seed for run in runs if run.result is not None or run.failure}
    return Cell(
        tuple(100 * accuracy for run in finished if (accuracy := run.accuracy) is not None),
        tuple(run.settings.seed for run in finished),
        failed=sum(bool(run.failure) for run in runs),
        missing=len({run.settings.seed for run in runs} - ended),
        dead_layers=tuple(name for names in dead for name in names),
        runs_with_dead_layers=len(dead),
    )


def one_per_seed(runs: Sequence[Record]) -> list[Record]:
    """One run per seed, also if a seed was run again with another number of threads or with the aim test."""
    return list({run.settings.seed: run for run in reversed(runs)}.values())[::-1]


def _interpolated(runs: Sequence[Record], sparsity: float) -> Cell:
    """For each seed, interpolate its curve at a sparsity. Curves are never extrapolated."""
    values = dict[int, float]()
    for seed in sorted({run.settings.seed for run in runs}):
        points = [
            (run.sparsity, 100 * run.accuracy)
            for run in runs
            if run.settings.seed == seed and run.sparsity is not None and run.accuracy is not None
        ]
        if (value := interpolate(points, sparsity)) is not None:
            values[seed] = value
    failed = sum(bool(run.failure) for run in runs)
    missing = sum(run.result is None and not run.failure for run in runs)
    return Cell(tuple(values.values()), tuple(values), failed, missing, interpolated=True)


def interpolate(points: Iterable[tuple[float, float]], sparsity: float) -> float | None:
    """The accuracy at a sparsity, interpolated linearly in the logarithm of the density; None outside the curve.

    The curve goes through the Pareto front of the points (sparsity, accuracy). A point is left out if another one has
    at least its sparsity and at least its accuracy.
    """
    valid = [(at, accuracy) for at, accuracy in points if at < 1]
    front = [(s, a) for s, a in valid if not any(t >= s and b >= a and (t, b) != (s, a) for t, b in valid)]
    curve = sorted((math.log(1 - at), accuracy) for at, accuracy in set(front))
    x = math.log(1 - sparsity)
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def log_linear(points: Mapping[float, float], at: float) -> float | None:
    """The value at a number, linear in its logarithm between the points next to it; None outside of them."""
    before, after = max((x for x in points if x <= at), default=None), min((x for x in points if x >= at), default=None)
    if before is None or after is None:
        return None
    share = math.log(at / before) / math.log(after / before) if after > before else 0.0
    return points[before] + share * (points[after] - points[before])


def beats(one: Cell, other: Cell) -> bool | None:
    """Whether `one` is better: the 95 % confidence interval of the difference, paired by seed, is above 0.

    None if this cannot be decided: fewer than two seeds in common, or some seeds of `one` diverged, so that the mean is
    over the lucky seeds.
    """
    if one.failed or not one.values or not other.values:
        return None
    difference = one.minus(other)
    return None if difference.interval is None else difference.is_positive


def has_larger_spread(one: Cell, other: Cell) -> bool:
    """Whether the spread of `one` is larger: a two-sided F-test at 95 %. Three seeds need a factor of 6.2."""
    from scipy.special import fdtri

    if one.spread is None or other.spread is None:
        return False
    bound = float(fdtri(one.seeds - 1, other.seeds - 1, 0.975))
    return one.spread**2 > bound * other.spread**2


def best(column: Mapping[str, Cell]) -> str | None:
    """The label with the highest mean; None if nothing was measured."""
    measured = {label: cell.mean for label, cell in column.items() if cell.values}
    return max(measured, key=lambda label: measured[label], default=None)


def level_with_best(column: Mapping[str, Cell]) -> set[str]:
    """The labels that the best one does not significantly beat, also for want of seeds."""
    top = best(column)
    others = {label: cell for label, cell in column.items() if cell.values and label != top}
    return {label for label, cell in others.items() if top is not None and not beats(column[top], cell)}


def sparsities(rows: Mapping[str, Mapping[float, object]]) -> list[float]:
    return sorted({sparsity for row in rows.values() for sparsity in row})


def seeds_line(runs: Sequence[Record]) -> str:
    """The number of seeds per cell, in words."""
    counts = sorted({cell.seeds for row in cells(runs).values() for cell in row.values() if cell.values})
    if not counts:
        return "no finished runs"
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def by_option(runs: Sequence[Record], option: str) -> dict[tuple[float, float], Cell]:
    """Cells by the value of an option and the sparsity, without runs that do not have the option."""

    def key(run: Record) -> tuple[float, float] | None:
        value, sparsity = run.settings.option(option), run.settings.sparsity
        return None if value is None or sparsity is None else (value, sparsity)

    return {at: cell_of(group) for at, group in grouped(runs, key).items()}


def shot_shares(runs: Sequence[Record]) -> dict[str, dict[float, Cell]]:
    """Over-shoots in percent of all shots at zero, by label and sparsity, for the runs with the aim test."""
    labels, shares = label_runs(runs), dict[str, dict[float, dict[int, float]]]()
    for run in runs:
        if run.result is not None and run.result.get("aim") and run.settings.sparsity is not None:
            over, under = run.result["aim"]["over_shoots"], run.result["aim"]["under_shoots"]
            by_seed = shares.setdefault(labels[run.name], {}).setdefault(run.settings.sparsity, {})
            by_seed[run.settings.seed] = 100 * over / max(1, over + under)
    return {
        label: {sparsity: Cell(tuple(found.values()), tuple(found)) for sparsity, found in row.items()}
        for label, row in shares.items()
    }

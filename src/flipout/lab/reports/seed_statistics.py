"""Means, spreads, and what may be called a difference."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .labels import counted, labels, scanned
from .records import Record


@dataclass(frozen=True)
class Cell:
    """The accuracies of one method at one sparsity, in percent, over the seeds that finished."""

    values: tuple[float, ...]
    failed: int = 0
    interpolated: bool = False
    complete: bool = False  # every run that could give a value is finished
    dead: tuple[str, ...] = ()  # the layers that died, once for each run in which they did
    runs_with_dead: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation; None with a single seed, for then nothing is known of it."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def seeds(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        if not self.values:
            nothing = "out of reach" if self.interpolated and self.complete else "missing"
            return f"{self.failed} failed" if self.failed else nothing
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        mark = " †" if self.interpolated else ""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.mean:.2f}{spread}{mark}{failed}"


Cells = Mapping[str, Mapping[float, Cell]]


def cells(runs: Sequence[Record]) -> dict[str, dict[float, Cell]]:
    """By label and sparsity. Methods whose sparsity is an outcome are interpolated at the sparsities of the others."""
    named = labels(runs)
    if (scan := scanned(runs)) is not None:  # in the order of the values, the methods one after the other
        methods = list(dict.fromkeys(run.settings.method for run in runs))
        runs = sorted(runs, key=lambda run: (methods.index(run.settings.method), run.settings.option(scan) or 0))
    asked = sorted({run.settings.sparsity for run in runs if run.settings.sparsity} - {0.0})
    gathered: dict[str, dict[float, list[Record]]] = {}
    outcomes: dict[str, list[Record]] = {}
    for run in runs:
        if run.settings.sparsity is None:
            outcomes.setdefault(named[run.name], []).append(run)
        elif run.settings.method != "dense":
            by_sparsity = gathered.setdefault(named[run.name], {})
            by_sparsity.setdefault(run.settings.sparsity, []).append(run)
    found = {label: {s: cell_of(of[s]) for s in sorted(of)} for label, of in gathered.items()}
    for label, of in outcomes.items():
        found[label] = {sparsity: _interpolated(of, sparsity) for sparsity in asked}
    return found


def dense(runs: Iterable[Record]) -> Cell | None:
    """The reference, if it was run."""
    found = [run for run in runs if run.settings.method == "dense"]
    return cell_of(found) if found else None


def cell_of(runs: Sequence[Record]) -> Cell:
    finished = one_per_seed([run for run in runs if run.result is not None])
    dead = [run.result["dead_layers"] for run in finished if run.result is not None and run.result["dead_layers"]]
    return Cell(
        tuple(100 * accuracy for run in finished if (accuracy := run.accuracy) is not None),
        failed=sum(bool(run.failure) for run in runs),
        dead=tuple(name for names in dead for name in names),
        runs_with_dead=len(dead),
    )


def one_per_seed(runs: Sequence[Record]) -> list[Record]:
    """A seed counts once, also if it was run again with another number of threads, or with shots counted."""
    return list({run.settings.seed: run for run in reversed(runs)}.values())[::-1]


def _interpolated(runs: Sequence[Record], sparsity: float) -> Cell:
    """Between the two neighbours of each seed's curve, linearly in the logarithm of the density; never beyond it."""
    seeds = sorted({run.settings.seed for run in runs})
    values = []
    for seed in seeds:
        points = [
            (run.sparsity, 100 * run.accuracy)
            for run in runs
            if run.settings.seed == seed and run.sparsity is not None and run.accuracy is not None
        ]
        if (value := interpolate(points, sparsity)) is not None:
            values.append(value)
    complete = all(run.result is not None or run.failure for run in runs)
    return Cell(tuple(values), sum(bool(run.failure) for run in runs), interpolated=True, complete=complete)


def interpolate(points: Iterable[tuple[float, float]], sparsity: float) -> float | None:
    """The accuracy at a sparsity, on the curve through (sparsity, accuracy) over log density.

    The curve is the trade-off: a point that another one beats in sparsity and accuracy is not on it.
    """
    there = [(at, accuracy) for at, accuracy in points if at < 1]
    front = [(s, a) for s, a in there if not any(t >= s and b >= a and (t, b) != (s, a) for t, b in there)]
    curve = sorted((math.log(1 - at), accuracy) for at, accuracy in set(front))
    wanted = math.log(1 - sparsity)
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= wanted <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (wanted - x0) / (x1 - x0)
    return None


def beats(one: Cell, other: Cell) -> bool | None:
    """Whether the difference of the means is larger than the spread of a difference, `sqrt(s1^2 + s2^2)`.

    None where there is nothing to tell by: a cell is missing, has one seed only, or has lost seeds to divergence, which
    leaves the lucky ones.
    """
    if one.failed or not one.values or not other.values or one.spread is None or other.spread is None:
        return None
    return one.mean - other.mean > math.hypot(one.spread, other.spread)


def wider(one: Cell, other: Cell) -> bool:
    """Whether a spread is larger by more than chance: the F-test at 95 %. With three seeds it takes a factor of 4.4."""
    from scipy.stats import f

    if one.spread is None or other.spread is None:
        return False
    bound = float(f.ppf(0.95, one.seeds - 1, other.seeds - 1))
    return one.spread**2 > bound * other.spread**2


def best(column: Mapping[str, Cell]) -> set[str]:
    """Who is best at a sparsity, and who is not told apart from it: by less than the spread, or with too few seeds."""
    there = {label: cell for label, cell in column.items() if cell.values}
    if not there:
        return set()
    top = max(there, key=lambda label: there[label].mean)
    return {label for label, cell in there.items() if label == top or not beats(there[top], cell)}


def sparsities(found: Cells) -> list[float]:
    return sorted({sparsity for of in found.values() for sparsity in of})


def seeds_line(runs: Sequence[Record]) -> str:
    """How many seeds there are to a cell."""
    counts = sorted({cell.seeds for of in cells(runs).values() for cell in of.values() if cell.values})
    if not counts:
        return "no finished runs"
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def by_option(runs: Sequence[Record], option: str) -> dict[tuple[float, float], Cell]:
    """Cells by the value of an option and the sparsity."""
    grouped: dict[tuple[float, float], list[Record]] = {}
    for run in runs:
        value = run.settings.option(option)
        if value is not None and run.settings.sparsity is not None:
            grouped.setdefault((value, run.settings.sparsity), []).append(run)
    return {key: cell_of(of) for key, of in grouped.items()}


def shot_shares(runs: Sequence[Record]) -> dict[str, dict[float, Cell]]:
    """By label and sparsity: which share of all shots at zero went over it, in percent, where the aim test counted."""
    named, shares = labels(runs), dict[str, dict[float, list[float]]]()
    for run in runs:
        if run.result is not None and run.result.get("aim") and run.settings.sparsity is not None:
            over, under = run.result["aim"]["over_shoots"], run.result["aim"]["under_shoots"]
            of = shares.setdefault(named[run.name], {}).setdefault(run.settings.sparsity, [])
            of.append(100 * over / max(1, over + under))
    return {label: {s: Cell(tuple(values)) for s, values in of.items()} for label, of in shares.items()}

"""Means, spreads, and what may be called a difference."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .labels import labels
from .records import Record


@dataclass(frozen=True)
class Cell:
    """The accuracies of one method at one sparsity, in percent, over the seeds that finished."""

    values: tuple[float, ...]
    failed: int = 0
    interpolated: bool = False
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
            return f"{self.failed} failed" if self.failed else "missing"
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        mark = " †" if self.interpolated else ""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.mean:.2f}{spread}{mark}{failed}"


Cells = Mapping[str, Mapping[float, Cell]]


def cells(runs: Sequence[Record]) -> dict[str, dict[float, Cell]]:
    """By label and sparsity. Methods whose sparsity is an outcome are interpolated at the sparsities of the others."""
    named = labels(runs)
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
    finished = [run for run in runs if run.result is not None]
    dead = [run.result["dead_layers"] for run in finished if run.result is not None and run.result["dead_layers"]]
    return Cell(
        tuple(100 * accuracy for run in finished if (accuracy := run.accuracy) is not None),
        failed=sum(bool(run.failure) for run in runs),
        dead=tuple(name for names in dead for name in names),
        runs_with_dead=len(dead),
    )


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
    return Cell(tuple(values), failed=sum(bool(run.failure) for run in runs), interpolated=True)


def interpolate(points: Iterable[tuple[float, float]], sparsity: float) -> float | None:
    """The accuracy at a sparsity, on the curve through (sparsity, accuracy) over log density."""
    curve = sorted((math.log(1 - at), accuracy) for at, accuracy in points if at < 1)
    wanted = math.log(1 - sparsity)
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= wanted <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (wanted - x0) / (x1 - x0)
    return None


def beats(one: Cell, other: Cell) -> bool | None:
    """Whether the difference of the means is larger than the spread of a difference, `sqrt(s1^2 + s2^2)`.

    None where there is nothing to tell by: a cell is missing, or has one seed only.
    """
    if not one.values or not other.values or one.spread is None or other.spread is None:
        return None
    return one.mean - other.mean > math.hypot(one.spread, other.spread)


def best(column: Mapping[str, Cell]) -> set[str]:
    """Who is best at a sparsity, and who is not told apart from it by more than the spread."""
    there = {label: cell for label, cell in column.items() if cell.values}
    if not there:
        return set()
    top = max(there, key=lambda label: there[label].mean)
    return {label for label, cell in there.items() if label == top or beats(there[top], cell) is False}


def sparsities(found: Cells) -> list[float]:
    return sorted({sparsity for of in found.values() for sparsity in of})


def seeds_line(runs: Sequence[Record]) -> str:
    """How many seeds there are to a cell."""
    counts = sorted({cell.seeds for of in cells(runs).values() for cell in of.values() if cell.values})
    if not counts:
        return "no finished runs"
    said = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{said} seed{'' if counts == [1] else 's'}"

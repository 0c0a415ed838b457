"""Differences that are paired by seed, and their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
FEWEST = 3
"""The fewest values that have an interval. With two, a spread that is small by chance would decide."""


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The confidence interval of a mean by Student's t distribution; None with fewer than three values."""
    number = len(values)
    if number < FEWEST:
        return None
    half = _quantile(number - 1) * statistics.stdev(values) / math.sqrt(number)
    mean = statistics.fmean(values)
    return mean - half, mean + half


@cache
def _quantile(degrees_of_freedom: int) -> float:
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class PairedDifference:
    """Differences of two methods, one for each seed that both have."""

    values: tuple[float, ...]

    @classmethod
    def between(cls, one: Mapping[int, float], other: Mapping[int, float]) -> PairedDifference:
        """The first minus the second, both given by seed."""
        return cls(tuple(one[seed] - other[seed] for seed in one if seed in other))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean; None with fewer than three seeds."""
        return interval_of_mean(self.values)

    @property
    def is_shown(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.is_positive or self.is_negative

    @property
    def is_positive(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval[0] > 0

    @property
    def is_negative(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.interval is not None and self.interval[1] < 0

    def __str__(self) -> str:
        if not self.values:
            return "no common seed"
        if self.interval is None:
            return f"{self.mean:+.2f} ({'one seed' if len(self.values) == 1 else 'two seeds'})"
        low, high = self.interval
        # An end that is close to 0 shows on which side it is.
        digits = 2 if min(abs(low), abs(high)) >= 0.005 or low == high else 3
        return f"{self.mean:+.2f} ({low:+.{digits}f} to {high:+.{digits}f})"

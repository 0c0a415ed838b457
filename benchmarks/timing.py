"""Ratios of medians, taken in one process with the repetitions interleaved: what holds on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(
    works: Mapping[str, Callable[[], object]], repetitions: int, warm_up: int = 2
) -> dict[str, list[float]]:
    """Times each piece of work `repetitions` times, in turn, after a warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(warm_up + repetitions):
        for name, work in works.items():
            elapsed = seconds(work)
            if repetition >= warm_up:
                taken[name].append(elapsed)
    return taken


def median(times: list[float]) -> float:
    return statistics.median(times)


def spread(times: list[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / median(times)

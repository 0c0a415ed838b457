"""Ratios of medians, taken in one process with the repetitions interleaved: what holds on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]
Times = dict[str, list[float]]


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(
    works: Mapping[str, Work], repetitions: int, warm_up: int = 2, undo: Mapping[str, Work] | None = None
) -> Times:
    """Times each piece of work `repetitions` times, in turn, after a warm-up; what undoes a work is not timed."""
    taken: Times = {name: [] for name in works}
    for repetition in range(warm_up + repetitions):
        for name, work in works.items():
            elapsed = seconds(work)
            if undo and name in undo:
                undo[name]()
            if repetition >= warm_up:
                taken[name].append(elapsed)
    return taken


def median(times: list[float]) -> float:
    return statistics.median(times)


def ratio(times: Times, over: str, under: str) -> float:
    return median(times[over]) / median(times[under])


def spread(times: list[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / median(times)


def spreads(times: Times) -> dict[str, object]:
    """For each piece of work, its median in milliseconds, its spread, and how often it was done."""
    return {
        name: {"milliseconds": round(median(taken) * 1e3, 3), "spread": round(spread(taken), 3), "times": len(taken)}
        for name, taken in times.items()
    }

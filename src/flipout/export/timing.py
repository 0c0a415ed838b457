"""Time functions so that the results can be compared on a busy machine: interleaved, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Timing:
    """The median, the lower and the upper quartile of repeated timings, in milliseconds."""

    median: float
    low: float
    high: float

    @property
    def quartiles(self) -> str:
        return f"{format_milliseconds(self.low)} to {format_milliseconds(self.high)}"


def format_milliseconds(milliseconds: float) -> str:
    """Return milliseconds as text, with three decimals below one millisecond and two above."""
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:.2f}"


def time_interleaved(
    functions: Mapping[Name, Callable[[], object]], repetitions: int, warm_up: int = 1
) -> dict[Name, Timing]:
    """Time each function `repetitions` times, interleaved, so that a busy machine slows all of them down alike.

    Before each timing the function runs once untimed, so that it finds its own weights in the cache.
    """
    if repetitions < 1:
        raise ValueError(f"repetitions is {repetitions}: it must be at least 1")
    times: dict[Name, list[float]] = {name: [] for name in functions}
    for repetition in range(warm_up + repetitions):
        for name in rotated(functions, repetition):
            functions[name]()
            _, elapsed = time_call(functions[name])
            if repetition >= warm_up:
                times[name].append(elapsed)
    return {name: summarize_times(each) for name, each in times.items()}


def rotated(names: Iterable[Name], number: int) -> list[Name]:
    """Return the names in the same cyclic order, starting with another one for each number."""
    names = list(names)
    first = number % len(names)
    return names[first:] + names[:first]


def time_call(function: Callable[..., object], *arguments: object) -> tuple[object, float]:
    """Return the result of a call and its time in milliseconds."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, 1000 * (time.perf_counter() - start)


def summarize_times(times: list[float]) -> Timing:
    """Return the median and the quartiles of at least one time."""
    if len(times) == 1:
        return Timing(times[0], times[0], times[0])
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(statistics.median(times), low, high)

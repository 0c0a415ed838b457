"""Times that can be compared on a noisy machine: taken in turn, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Work = Callable[[], object]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Time:
    """Milliseconds: the median of some repetitions, and the middle half of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{digits(self.median)} ({self.spread})"

    @property
    def spread(self) -> str:
        return f"{digits(self.low)} to {digits(self.high)}"


def digits(milliseconds: float) -> str:
    """Down to microseconds where there is less than one millisecond."""
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:.2f}"


def interleaved(works: Mapping[Name, Work], repetitions: int, warm_up: int = 1) -> dict[Name, Time]:
    """Times each work `repetitions` times, in turn, so that what slows the machine down slows all of them alike.

    Before it is timed each runs once untimed, and so finds its own weights in the cache, not those of the one before.
    """
    if repetitions < 1:
        raise ValueError(f"repetitions is {repetitions}: give at least 1")
    taken: dict[Name, list[float]] = {name: [] for name in works}
    for repetition in range(warm_up + repetitions):
        for name in in_turn(works, repetition):
            works[name]()
            _, elapsed = timed(works[name])
            if repetition >= warm_up:
                taken[name].append(elapsed)
    return {name: summary(times) for name, times in taken.items()}


def in_turn(names: Iterable[Name], number: int) -> list[Name]:
    """The same names, beginning each time with the next one, so that none always comes after the same other."""
    names = list(names)
    first = number % len(names)
    return names[first:] + names[:first]


def timed(work: Callable[..., object], *arguments: object) -> tuple[object, float]:
    """What a call gives, and its milliseconds."""
    start = time.perf_counter()
    result = work(*arguments)
    return result, 1000 * (time.perf_counter() - start)


def summary(times: list[float]) -> Time:
    """Of at least one repetition."""
    if len(times) == 1:
        return Time(times[0], times[0], times[0])
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Time(statistics.median(times), low, high)

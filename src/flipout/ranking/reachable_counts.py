"""Which numbers of weights can be made up of whole units of given sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

Units = Mapping[int, int]
"""For each size of a unit, in weights, the number of units of that size."""


def reachable(units: Units, target: int) -> bool:
    """Whether some of the units have exactly `target` weights together.

    Slow and obvious: the set of the sums of all subsets. Here units are taken size by size, the largest first, until
    the next one does not fit. If a solution exists, there is one that differs from this start by at most `2 S + 1`
    units, where `S` is the largest size (Eisenbrand and Weismantel, 2018), so only those are tried.
    """
    counts = {size: number for size, number in units.items() if number}
    total = sum(size * number for size, number in counts.items())
    if not 0 < target < total:
        return target in (0, total)
    divisor = math.gcd(*counts)
    if target % divisor:
        return False
    sizes = sorted((size // divisor for size in counts), reverse=True)
    rest, window = target // divisor, 2 * sizes[0] + 2
    offsets, shift, full = 1, 0, True  # bit `i` of `offsets`: the start can be changed by `i + shift` weights
    for size in sizes:
        number = counts[size * divisor]
        taken = min(number, rest // size) if full else 0
        full, rest = full and taken == number, rest - size * taken
        fewer, more = min(taken, window), min(number - taken, window)
        offsets, shift = _with_copies(offsets, size, fewer + more), shift - size * fewer
    place = rest - shift
    return place >= 0 and bool(offsets >> place & 1)


def least_reachable(units: Units, least: int) -> int:
    """The smallest number of weights, at least `least`, that some of the units have together."""
    total = sum(size * number for size, number in units.items())
    if least > total:
        raise ValueError(f"cannot choose {least} of {total} weights")
    sizes = [size for size, number in units.items() if number]
    if len(sizes) == 1:
        return -(-least // sizes[0]) * sizes[0]
    while not reachable(units, least):
        least += 1
    return least


def _with_copies(sums: int, size: int, copies: int) -> int:
    """The sums, as bits of a number, after up to `copies` more units of a size may be added."""
    step = 1
    while copies:
        step = min(step, copies)
        sums |= sums << (size * step)
        copies -= step
        step *= 2
    return sums

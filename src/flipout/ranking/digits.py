"""The exact k smallest scores, digit by digit, without waiting for a device.

Scores become integers of the same order. A histogram of their leading sixteen bits gives the leading digit of the k-th
smallest score; a histogram of the next digit, over the scores that share the digits so far, gives the next one. At the
end the k-th smallest score is known exactly, and equal scores are taken in the order of (tensor, index). Nothing is
sorted, and the search itself stays on the device: what it found is read once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Scores = Callable[[int], Tensor]
"""`scores(i)` returns the scores of tensor `i`, the same ones every time it is called."""

DIGIT = 16
BINS = 1 << DIGIT


class Found(NamedTuple):
    """The marks of the smallest scores, and the numbers that prove them right, which are still on the device."""

    marks: list[Tensor]
    available: Tensor
    not_finite: Tensor
    marked: Tensor


def search(scores: Scores, candidates: Sequence[Tensor], count: int, dtype: torch.dtype) -> Found:
    """Mark the `count` smallest scores among the candidates, compared as float32, float64 or int64."""
    home = next((mask.device for mask in candidates if mask.device.type != "cpu"), torch.device("cpu"))
    leading = histogram_of(scores, candidates, dtype, bits_of(dtype) - DIGIT, None, home)
    digit, rank = find_bin(leading, torch.full((), count, dtype=torch.int64, device=home))
    marks = refine(scores, candidates, digit - BINS // 2, rank, dtype)
    beyond = bins_beyond_finite(dtype)
    return Found(
        marks,
        available=leading.sum(),
        not_finite=leading[:beyond].sum() + leading[BINS - beyond :].sum(),
        marked=added_up([torch.count_nonzero(mark) for mark in marks], home),
    )


def refine(
    scores: Scores, candidates: Sequence[Tensor], prefix: Tensor, rank: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Mark the scores below those with a leading digit, and the `rank` smallest of those that have it."""
    for shift in range(bits_of(dtype) - 2 * DIGIT, -1, -DIGIT):
        digit, rank = find_bin(histogram_of(scores, candidates, dtype, shift, prefix, prefix.device), rank)
        prefix = prefix << DIGIT | digit
    marks = []
    for i, candidate in enumerate(candidates):
        keys, device = ordered(scores(i), dtype), candidate.device
        threshold, rank = prefix.to(device), rank.to(device)
        equal = candidate & (keys == threshold)
        number = torch.count_nonzero(equal)
        if device.type != "cpu" or number > rank:  # (a comparison on the CPU waits for nothing)
            equal &= (equal.flatten().cumsum(0) <= rank).view(equal.shape)
        rank = (rank - number).clamp_min_(0)
        marks.append(equal | (candidate & (keys < threshold)))
    return marks


def ordered(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers in the order of the scores: the bits of a float, those below the sign inverted if it is negative."""
    if dtype == torch.int64:
        if scores.is_floating_point():
            raise ValueError("the criterion returns integers for some layers and floats for others; return one kind")
        return scores.long()
    bits = (scores.to(dtype) + 0.0).view(integer_of(dtype))  # + 0.0: -0.0 becomes 0.0, for they are equal
    return bits ^ (bits >> (bits_of(dtype) - 1) & torch.iinfo(bits.dtype).max)


def integer_of(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype == torch.float32 else torch.int64


def bits_of(dtype: torch.dtype) -> int:
    return torch.iinfo(integer_of(dtype)).bits


def bins_beyond_finite(dtype: torch.dtype) -> int:
    """The number of leading digits at each end that mean infinity or NaN: those with an exponent of all ones."""
    exponent = {torch.float32: 8, torch.float64: 11}
    return 1 << (DIGIT - 1 - exponent[dtype]) if dtype in exponent else 0


def histogram_of(
    scores: Scores,
    candidates: Sequence[Tensor],
    dtype: torch.dtype,
    shift: int,
    prefix: Tensor | None,
    home: torch.device,
) -> Tensor:
    """The number of candidates with each digit, among those whose digits before it are `prefix` (None: the first)."""
    totals: dict[torch.device, Tensor] = {}
    for i, candidate in enumerate(candidates):
        keys, taking_part, device = ordered(scores(i), dtype).flatten(), candidate.flatten(), candidate.device
        digits = keys >> shift
        if prefix is None:
            digits += BINS // 2
        else:
            taking_part = taking_part & (digits >> DIGIT == prefix.to(device))
            digits &= BINS - 1
        if device not in totals:
            totals[device] = torch.zeros(BINS, dtype=torch.int64, device=device)
        if device.type == "cpu":
            totals[device] += torch.bincount(digits[taking_part], minlength=BINS)
        else:  # `bincount` and a boolean index would wait for the device
            totals[device].scatter_add_(0, digits.long(), taking_part.long())
    return added_up(list(totals.values()), home)


def find_bin(histogram: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """The bin that holds the `rank`-th element, counted from 1, and its rank in that bin."""
    through = histogram.cumsum(0)
    place = torch.searchsorted(through, rank.view(1)).clamp_max_(BINS - 1)
    below = (through - histogram).index_select(0, place)
    return place.view(()), rank - below.view(())


def added_up(numbers: Sequence[Tensor], home: torch.device) -> Tensor:
    """The sum of tensors on any devices, each device adding up its own first."""
    totals: dict[torch.device, Tensor] = {}
    for number in numbers:
        totals[number.device] = totals[number.device] + number if number.device in totals else number
    return torch.stack([total.to(home) for total in totals.values()]).sum(0)

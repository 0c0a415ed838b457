"""The exact k smallest scores over any number of tensors, streaming.

A global ranking is usually written as concatenate, sort, cut. Here nothing is concatenated and nothing is
sorted: each score is mapped to an integer that orders the same way, and the integer of the k-th smallest is found
sixteen bits at a time from histograms. Scores are asked for one tensor at a time, once for each pass, so at most one
tensor's scores are in memory. Histograms add up, whatever device each tensor is on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Scores = Callable[[int], Tensor]
"""`scores(i)` is the scores of tensor `i`; asked several times, it answers the same."""

_DIGIT = 16
_BINS = 1 << _DIGIT


def smallest(
    scores: Scores, candidates: Sequence[Tensor], count: int, *, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Marks the `count` smallest scores among the candidates; ties go by (tensor, index).

    The same, slow and obvious: `sorted((score, tensor, index) for all candidates)[:count]`.

    Args:
        scores: `scores(i)` gives the scores of tensor `i`, of any real floating type and either sign.
        candidates: for each tensor, which elements take part.
        count: how many to mark, exactly.
        dtype: what scores are compared in: float32, which holds every half-precision score too, or float64.

    Returns:
        for each tensor, a boolean tensor of its shape.
    """
    available = sum(int(candidate.sum()) for candidate in candidates)
    if not 0 <= count <= available:
        raise ValueError(f"cannot choose {count} of {available} weights")
    if count == 0:
        return [torch.zeros_like(candidate) for candidate in candidates]
    if count == available:
        return [candidate.clone() for candidate in candidates]

    threshold, ties = _kth(scores, candidates, count, dtype)

    chosen = []
    for i, candidate in enumerate(candidates):
        keys = _ordered(scores(i), dtype)
        equal = candidate & (keys == threshold)
        number = int(equal.sum())
        if number > ties:  # the first ones only
            equal &= (equal.flatten().cumsum(0) <= ties).view_as(equal)
        ties -= min(number, ties)
        chosen.append(equal | (candidate & (keys < threshold)))
    if sum(int(mark.sum()) for mark in chosen) != count:
        raise RuntimeError(
            "the criterion gave other scores when asked again for the same weights; it must be a pure function of "
            "its arguments (for random scores, ask for the statistic `uniform`)"
        )
    return chosen


def choose(
    scores: Scores,
    alive: Sequence[Tensor],
    keep: int,
    *,
    floors: Sequence[int],
    per_layer: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Marks what to prune so that exactly `keep` weights stay, and at least `floors[i]` of them in layer `i`."""
    kept = [int(mask.sum()) for mask in alive]

    def lowest(i: int, count: int) -> Tensor:
        return smallest(lambda _: scores(i), [alive[i]], count, dtype=dtype)[0]

    if per_layer:
        quota = apportion([mask.numel() for mask in alive], keep, floors)
        return [lowest(i, kept[i] - quota[i]) for i in range(len(alive))]
    # What a floor protects in its layer are the highest scores; the rest is ranked over the whole network.
    candidates = [lowest(i, max(0, kept[i] - floor)) if floor else alive[i] for i, floor in enumerate(floors)]
    return smallest(scores, candidates, sum(kept) - keep, dtype=dtype)


def apportion(sizes: Sequence[int], keep: int, floors: Sequence[int]) -> list[int]:
    """Splits `keep` over layers in proportion to their sizes, each at least its floor, adding up exactly.

    Each layer loses `round(t * size)` weights, for one `t` that all share (Webster's divisor method). Unlike rounding
    up the largest remainders it is monotone: when `keep` falls, no layer's share ever rises.
    """

    def lost(t: float) -> list[int]:
        return [min(int(t * n + 0.5), n - min(floor, n)) for n, floor in zip(sizes, floors, strict=True)]

    goal = sum(sizes) - keep
    low, high = 0.0, 1.0
    if sum(lost(high)) < goal:
        raise ValueError(f"floors {list(floors)} add up to more than the {keep} weights to keep")
    while low < (middle := (low + high) / 2) < high:
        if sum(lost(middle)) <= goal:
            low = middle
        else:
            high = middle
    result = lost(high if sum(lost(high)) <= goal else low)
    # Layers whose next weight goes at the very same t: the first ones give it.
    missing = goal - sum(result)
    for i, upper in enumerate(lost(high)):
        step = min(missing, upper - result[i])
        result[i] += step
        missing -= step
    return [n - gone for n, gone in zip(sizes, result, strict=True)]


def _kth(scores: Scores, candidates: Sequence[Tensor], count: int, dtype: torch.dtype) -> tuple[int, int]:
    """The key of the `count`-th smallest score, and how many scores of exactly that key are among the smallest."""
    highest = torch.finfo(dtype).bits - _DIGIT
    prefix, rank = 0, count
    for shift in range(highest, -1, -_DIGIT):
        histogram = torch.zeros(_BINS, dtype=torch.int64, device="cpu")
        for i, candidate in enumerate(candidates):
            keys = _ordered(scores(i), dtype)[candidate]
            if shift == highest:
                digits = (keys >> shift) + _BINS // 2  # keys are signed
            else:
                digits = keys[keys >> (shift + _DIGIT) == prefix] >> shift & (_BINS - 1)
            histogram += torch.bincount(digits, minlength=_BINS).cpu()
        below = histogram.cumsum(0)
        digit = int(torch.searchsorted(below, rank))
        rank -= int(below[digit - 1]) if digit else 0
        prefix = digit - _BINS // 2 if shift == highest else prefix << _DIGIT | digit
    return prefix, rank


def _ordered(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers in the order of the scores: a float's bits, with those below the sign turned over where it is set."""
    integer = torch.int64 if dtype == torch.float64 else torch.int32
    bits = (scores.to(dtype) + 0.0).view(integer)  # + 0.0: -0.0 becomes 0.0, for they are equal
    return bits ^ (bits >> (torch.iinfo(integer).bits - 1) & torch.iinfo(integer).max)

"""The exact k smallest scores over any number of tensors, streaming.

A global ranking is usually written as concatenate, sort, cut. Here the scores are histogrammed by their leading sixteen
bits, one tensor at a time, which tells the narrow range that the k-th smallest lies in. A second pass takes all below
that range and looks closer at the few inside it; where they are not few (many equal scores), a third goes by their
other bits. At most one tensor's scores are in memory, and histograms add up, whatever device each tensor is on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

Scores = Callable[[int], Tensor]
"""`scores(i)` is the scores of tensor `i`; asked several times, it answers the same."""

Run = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A function as it is, or a faster one that does the same."""

_DIGIT = 16
_BINS = 1 << _DIGIT


class NotFiniteError(ValueError):
    """A score is NaN or infinite; `tensor` is the number of its tensor."""

    def __init__(self, tensor: int) -> None:
        super().__init__(f"a score of tensor {tensor} is NaN or infinite")
        self.tensor = tensor


def smallest(
    scores: Scores,
    candidates: Sequence[Tensor],
    count: int,
    *,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
) -> list[Tensor]:
    """Marks the `count` smallest scores among the candidates; ties go by (tensor, index).

    The same, slow and obvious: `sorted((score, tensor, index) for all candidates)[:count]`.

    Args:
        scores: `scores(i)` gives the scores of tensor `i`, of any real floating type and either sign.
        candidates: for each tensor, which elements take part.
        count: how many to mark, exactly.
        dtype: what scores are compared in: float32, which holds every half-precision score too, or float64.
        run: what to do the elementwise work with: the function as it is, or compiled.

    Returns:
        for each tensor, a boolean tensor of its shape.
    """
    if count == 0:
        return [torch.zeros_like(candidate) for candidate in candidates]
    histogram = _leading_histogram(scores, candidates, dtype, run)
    available = int(histogram.sum())
    if not 0 < count <= available:
        raise ValueError(f"cannot choose {count} of {available} weights")
    prefix, rank = _find(histogram, count)
    inside = int(histogram[prefix])
    prefix -= _BINS // 2
    if inside <= max(candidate.numel() for candidate in candidates):
        chosen = _take_few(scores, candidates, prefix, inside, rank, dtype, run)
    else:
        chosen = _take_many(scores, candidates, prefix, rank, dtype)
    if _count(chosen) != count:
        raise _impure()
    return chosen


def choose(
    scores: Scores,
    alive: Sequence[Tensor],
    keep: int,
    *,
    floors: Sequence[int],
    per_layer: bool = False,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
) -> list[Tensor]:
    """Marks what to prune so that exactly `keep` weights stay, and at least `floors[i]` of them in layer `i`."""
    kept = [_count([mask]) for mask in alive]

    def lowest(i: int, count: int) -> Tensor:
        try:
            return smallest(lambda _: scores(i), [alive[i]], count, dtype=dtype, run=run)[0]
        except NotFiniteError:
            raise NotFiniteError(i) from None

    if per_layer:
        quota = apportion([mask.numel() for mask in alive], keep, floors)
        return [lowest(i, kept[i] - quota[i]) for i in range(len(alive))]
    # What a floor protects in its layer are the highest scores; the rest is ranked over the whole network.
    candidates = [lowest(i, max(0, kept[i] - floor)) if floor else alive[i] for i, floor in enumerate(floors)]
    return smallest(scores, candidates, sum(kept) - keep, dtype=dtype, run=run)


def read_floor(floor: int | float, sizes: Sequence[int], least: int) -> list[int]:
    """How many weights each layer keeps at the least, of a number or a share; all layers together at most `least`."""
    if not 0 <= floor < math.inf or (not isinstance(floor, Integral) and floor > 1):
        raise ValueError(f"floor is {floor}; give a whole number of weights, or a share of them between 0 and 1")
    share = None if isinstance(floor, Integral) else Decimal(repr(float(floor)))
    floors = [min(int(floor), n) if share is None else math.ceil(share * n) for n in sizes]
    if sum(floors) > least:
        raise ValueError(
            f"floor={floor} keeps {sum(floors):,} weights over {len(floors)} layers, but the sparsity asked for leaves "
            f"only {least:,}: lower the floor or the sparsity"
        )
    return floors


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


def _count(marks: Sequence[Tensor]) -> int:
    return sum(int(torch.count_nonzero(mark)) for mark in marks)


def _leading_histogram(scores: Scores, candidates: Sequence[Tensor], dtype: torch.dtype, run: Run) -> Tensor:
    """How many candidates have each leading digit, in the order of the scores."""
    exponent = 8 if dtype == torch.float32 else 11
    total = torch.zeros(_BINS + 1, dtype=torch.int64, device="cpu")
    for i, candidate in enumerate(candidates):
        bits = scores(i).to(dtype).view(_integer(dtype))
        digits = run(leading_digits)(bits.flatten(), candidate.view(torch.uint8).flatten())
        total += torch.bincount(digits, minlength=_BINS + 1).cpu()
    # Negative numbers come first, and the larger their bits the smaller they are.
    total = torch.cat([total[1 : _BINS // 2 + 1].flip(0), total[_BINS // 2 + 1 :]])
    beyond = 1 << (_DIGIT - 1 - exponent)  # an exponent of all ones is an infinity or NaN
    if total[:beyond].any() or total[-beyond:].any():
        raise NotFiniteError(
            next(i for i, mask in enumerate(candidates) if not torch.isfinite(scores(i).to(dtype))[mask].all())
        )
    return total


def leading_digits(bits: Tensor, candidate: Tensor) -> Tensor:
    """The leading sixteen bits of a float as a number from 1 on, and 0 for what is no candidate."""
    single = bits.dtype == torch.int32
    if torch.compiler.is_compiling():
        bits = torch.where(bits == (-(1 << 31) if single else -(1 << 63)), 0, bits)  # -0.0 becomes 0.0: they are equal
    else:
        bits = _bits(bits.view(torch.float32 if single else torch.float64), torch.float32 if single else torch.float64)
    return ((bits >> (16 if single else 48)) + 32_769) * candidate


def below_and_inside(score: Tensor, candidate: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Which candidates are below a range of scores, and which inside it, as bytes of 0 and 1."""
    number = torch.float32 if torch.compiler.is_compiling() else torch.uint8  # whichever is quick
    below = (score < low).to(number) * candidate.to(number)
    inside = (score <= high).to(number) * candidate.to(number) - below
    return below.to(torch.uint8), inside.to(torch.uint8)


def _find(histogram: Tensor, rank: int) -> tuple[int, int]:
    """The bin that holds the `rank`-th, counted from 1, and its rank in there."""
    below = histogram.cumsum(0)
    place = int(torch.searchsorted(below, rank))
    return place, rank - (int(below[place - 1]) if place else 0)


def _take_few(
    scores: Scores, candidates: Sequence[Tensor], prefix: int, inside: int, rank: int, dtype: torch.dtype, run: Run
) -> list[Tensor]:
    """All below the range of a leading digit, and the `rank` smallest of the few inside it, which are sorted."""
    low, high = _range(prefix, dtype)
    chosen, indices, values = [], [], []
    for i, candidate in enumerate(candidates):
        score = scores(i).to(dtype).flatten()
        taking_part, bounds = candidate.view(torch.uint8).flatten(), (low.to(score.device), high.to(score.device))
        below, within = run(below_and_inside)(score, taking_part, *bounds)
        index = _where(within)
        chosen.append(below.view(torch.bool))
        indices.append(index)
        values.append(score[index].cpu())
    order = torch.cat(values).argsort(stable=True)
    if len(order) != inside:
        raise _impure()
    picked = torch.zeros(inside, dtype=torch.bool, device="cpu")
    picked[order[:rank]] = True
    for mark, index, pick in zip(chosen, indices, picked.split([len(index) for index in indices]), strict=True):  # type: ignore[no-untyped-call]
        mark[index[pick.to(index.device)]] = True
    return [mark.view(candidate.shape) for mark, candidate in zip(chosen, candidates, strict=True)]


def _where(marks: Tensor) -> Tensor:
    """The indices of the few ones among bytes of 0 and 1, looked for eight bytes at a time."""
    whole = len(marks) // 8 * 8
    words = marks[:whole].view(torch.int64).nonzero()
    near = (words * 8 + torch.arange(8, device=marks.device)).flatten()
    return torch.cat([near[marks[near] > 0], marks[whole:].nonzero().squeeze(1) + whole])


def _take_many(
    scores: Scores, candidates: Sequence[Tensor], prefix: int, rank: int, dtype: torch.dtype
) -> list[Tensor]:
    """The same where many share a leading digit: digit by digit to the very score, and of its equals the first ones."""
    for shift in range(torch.finfo(dtype).bits - 2 * _DIGIT, -1, -_DIGIT):
        histogram = torch.zeros(_BINS, dtype=torch.int64, device="cpu")
        for i, candidate in enumerate(candidates):
            keys = _ordered(scores(i), dtype)[candidate]
            digits = keys[keys >> (shift + _DIGIT) == prefix] >> shift & (_BINS - 1)
            histogram += torch.bincount(digits, minlength=_BINS).cpu()
        digit, rank = _find(histogram, rank)
        prefix = prefix << _DIGIT | digit
    chosen = []
    for i, candidate in enumerate(candidates):
        keys = _ordered(scores(i), dtype)
        equal = candidate & (keys == prefix)
        number = int(equal.sum())
        if number > rank:
            equal &= (equal.flatten().cumsum(0) <= rank).view(equal.shape)
        rank -= min(number, rank)
        chosen.append(equal | (candidate & (keys < prefix)))
    return chosen


def _bits(scores: Tensor, dtype: torch.dtype) -> Tensor:
    return (scores.to(dtype) + 0.0).view(_integer(dtype))  # + 0.0: -0.0 becomes 0.0, for they are equal


def _ordered(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers in the order of the scores: a float's bits, with those below the sign turned over where it is set."""
    bits = _bits(scores, dtype)
    return bits ^ (bits >> (torch.finfo(dtype).bits - 1) & torch.iinfo(bits.dtype).max)


def _range(prefix: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The smallest and the largest score with a leading digit."""
    shift, most = torch.finfo(dtype).bits - _DIGIT, torch.iinfo(_integer(dtype)).max
    last = (prefix << shift) + (1 << shift) - 1 - (prefix == -1)  # whose last would be -0.0, which is no less than 0.0
    keys = torch.tensor([prefix << shift, last], dtype=_integer(dtype), device="cpu")
    bits = keys ^ (keys >> (torch.finfo(dtype).bits - 1) & most)
    low, high = bits.view(dtype)
    return low, high


def _integer(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float64 else torch.int32


def _impure() -> RuntimeError:
    return RuntimeError(
        "the criterion gave other scores when asked again for the same weights; it must be a pure function of its "
        "arguments (for random scores, ask for the statistic `uniform`)"
    )

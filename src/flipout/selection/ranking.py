"""The exact k smallest scores over any number of tensors, streaming.

A global ranking is usually written as concatenate, sort, cut. Here the scores are histogrammed by their leading sixteen
bits, one tensor at a time, which gives the narrow range that holds the k-th smallest score. A second pass takes
everything below that range and sorts the few scores inside it. If they are not few (many equal scores), a third pass
histograms their other bits. The scores of at most one tensor are in memory, and histograms of tensors on different
devices are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Scores = Callable[[int], Tensor]
"""`scores(i)` returns the scores of tensor `i`, the same ones every time it is called."""

Run = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes a function, and returns it or a faster one that does the same."""

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
    """Mark the `count` smallest scores among the candidates. Ties are broken by (tensor, index).

    Slow and obvious: `sorted((score, tensor, index) for all candidates)[:count]`.

    Args:
        scores: `scores(i)` returns the scores of tensor `i`, of any real floating-point type and either sign.
        candidates: for each tensor, a boolean tensor of the elements to choose from.
        count: how many to mark.
        dtype: the type that scores are compared in: float32, which holds every half-precision score too, or float64.
        run: wraps the elementwise functions, to compile them.

    Returns:
        For each tensor, a boolean tensor of its shape.
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
    if count_marked(chosen) != count:
        raise _impure()
    return chosen


def count_marked(marks: Sequence[Tensor]) -> int:
    return sum(int(torch.count_nonzero(mark)) for mark in marks)


def _leading_histogram(scores: Scores, candidates: Sequence[Tensor], dtype: torch.dtype, run: Run) -> Tensor:
    """The number of candidates with each leading digit, in the order of the scores."""
    exponent = 8 if dtype == torch.float32 else 11
    total = torch.zeros(_BINS + 1, dtype=torch.int64, device="cpu")
    for i, candidate in enumerate(candidates):
        bits = scores(i).to(dtype).view(_integer(dtype))
        digits = run(leading_digits)(bits.flatten(), candidate.view(torch.uint8).flatten())
        total += torch.bincount(digits, minlength=_BINS + 1).cpu()
    # Negative numbers come first. The larger their bits, the smaller they are.
    total = torch.cat([total[1 : _BINS // 2 + 1].flip(0), total[_BINS // 2 + 1 :]])
    beyond = 1 << (_DIGIT - 1 - exponent)  # an exponent of all ones means infinity or NaN
    if total[:beyond].any() or total[-beyond:].any():
        raise NotFiniteError(
            next(i for i, mask in enumerate(candidates) if not torch.isfinite(scores(i).to(dtype))[mask].all())
        )
    return total


def leading_digits(bits: Tensor, candidate: Tensor) -> Tensor:
    """The leading sixteen bits of a float as a number from 1 on, and 0 for elements that are not candidates."""
    single = bits.dtype == torch.int32
    if torch.compiler.is_compiling():
        bits = torch.where(bits == (-(1 << 31) if single else -(1 << 63)), 0, bits)  # -0.0 becomes 0.0: they are equal
    else:
        bits = _bits(bits.view(torch.float32 if single else torch.float64), torch.float32 if single else torch.float64)
    return ((bits >> (16 if single else 48)) + 32_769) * candidate


def below_and_inside(score: Tensor, candidate: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates below a range of scores and those inside it, as bytes of 0 and 1."""
    number = torch.float32 if torch.compiler.is_compiling() else torch.uint8  # the faster one
    below = (score < low).to(number) * candidate.to(number)
    inside = (score <= high).to(number) * candidate.to(number) - below
    return below.to(torch.uint8), inside.to(torch.uint8)


def _find(histogram: Tensor, rank: int) -> tuple[int, int]:
    """The bin that holds the `rank`-th element, counted from 1, and its rank in that bin."""
    below = histogram.cumsum(0)
    place = int(torch.searchsorted(below, rank))
    return place, rank - (int(below[place - 1]) if place else 0)


def _take_few(
    scores: Scores, candidates: Sequence[Tensor], prefix: int, inside: int, rank: int, dtype: torch.dtype, run: Run
) -> list[Tensor]:
    """Mark everything below the range of a leading digit, and the `rank` smallest of the few scores inside it."""
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
    """The indices of the few ones among bytes of 0 and 1, searched eight bytes at a time."""
    whole = len(marks) // 8 * 8
    words = marks[:whole].view(torch.int64).nonzero()
    near = (words * 8 + torch.arange(8, device=marks.device)).flatten()
    return torch.cat([near[marks[near] > 0], marks[whole:].nonzero().squeeze(1) + whole])


def _take_many(
    scores: Scores, candidates: Sequence[Tensor], prefix: int, rank: int, dtype: torch.dtype
) -> list[Tensor]:
    """The same if many scores share a leading digit: find the threshold digit by digit, take the first of equals."""
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
    """Integers in the order of the scores: the bits of a float, those below the sign inverted if it is negative."""
    bits = _bits(scores, dtype)
    return bits ^ (bits >> (torch.finfo(dtype).bits - 1) & torch.iinfo(bits.dtype).max)


def _range(prefix: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The smallest and the largest score with a leading digit."""
    shift, most = torch.finfo(dtype).bits - _DIGIT, torch.iinfo(_integer(dtype)).max
    last = (prefix << shift) + (1 << shift) - 1 - (prefix == -1)  # its last would be -0.0, which equals 0.0
    keys = torch.tensor([prefix << shift, last], dtype=_integer(dtype), device="cpu")
    bits = keys ^ (keys >> (torch.finfo(dtype).bits - 1) & most)
    low, high = bits.view(dtype)
    return low, high


def _integer(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float64 else torch.int32


def _impure() -> RuntimeError:
    return RuntimeError(
        "the criterion returned different scores for the same weights; it must be a pure function of its arguments "
        "(for random scores, use the statistic `uniform`)"
    )

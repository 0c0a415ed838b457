"""The exact k smallest scores over any number of tensors, streaming.

A global ranking is usually written as concatenate, sort, cut. Here the scores are histogrammed by their leading sixteen
bits, one tensor at a time, which gives the narrow range that holds the k-th smallest score. A second pass takes
everything below that range and sorts the few scores inside it. If they are not few (many equal scores), a third pass
histograms their other bits. The scores of at most one tensor are in memory.

On a device other than the CPU, and for integer scores, all bits are histogrammed, digit by digit: see `digits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..numerics import BLOCK
from ..problems import NotFiniteError
from ..views import View
from .across_ranks import search_views, total_counts
from .digits import BINS, DIGIT, Found, Scores, bins_beyond_finite, bits_of, integer_of, refine, search
from .host_numbers import counts, read_integers

Run = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes a function, and returns it or a faster one that does the same."""


def smallest(
    scores: Scores,
    candidates: Sequence[Tensor],
    count: int,
    *,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
    views: Sequence[View] = (),
) -> list[Tensor]:
    """Mark the `count` smallest scores among the candidates. Ties are broken by (tensor, index).

    Slow and obvious: `sorted((score, tensor, index) for all candidates)[:count]`.

    Args:
        scores: `scores(i)` returns the scores of tensor `i`, of any real type and either sign.
        candidates: for each tensor, a boolean tensor of the elements to choose from.
        count: how many to mark.
        dtype: the type that scores are compared in: float32, which holds every half-precision score too, float64, or
            int64 for integer scores.
        run: wraps the elementwise functions, to compile them.
        views: for each tensor, which elements of it are here; by default all of them. See `across_ranks`.

    Returns:
        For each tensor, a boolean tensor of its shape.
    """
    if count == 0:
        return [torch.zeros_like(candidate) for candidate in candidates]
    if any(view.key is not None for view in views):
        return _smallest_of_all_ranks(scores, candidates, count, dtype, views)
    if not _sortable(candidates, dtype):
        found = search(scores, candidates, count, dtype)
        _check([found], [count], lambda _: _not_finite(scores, candidates, dtype))
        return found.marks
    histogram = _leading_histogram(scores, candidates, dtype, run)
    available = int(histogram.sum())
    if not 0 < count <= available:
        raise _too_few(count, available)
    prefix, rank = _find(histogram, count)
    inside = int(histogram[prefix])
    prefix -= BINS // 2
    if inside <= max(candidate.numel() for candidate in candidates):
        chosen = _take_few(scores, candidates, prefix, inside, rank, dtype, run)
    else:
        start, left = (torch.full((), number, dtype=torch.int64, device="cpu") for number in (prefix, rank))
        chosen = refine(scores, candidates, start, left, dtype)
    if sum(counts(chosen)) != count:
        raise _impure()
    return chosen


def numbers_of_smallest(
    scores: Scores,
    candidates: Sequence[Tensor],
    count: int,
    *,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
    views: Sequence[View] = (),
) -> list[int]:
    """How many of the `count` smallest scores each tensor has; see `smallest`. Marks of one tensor are in memory."""
    if count == 0 or not _sortable(candidates, dtype) or any(view.key is not None for view in views):
        return counts(smallest(scores, candidates, count, dtype=dtype, run=run, views=views))
    histogram = _leading_histogram(scores, candidates, dtype, run)
    prefix, rank = _find(histogram, count)
    if int(histogram[prefix]) > max(candidate.numel() for candidate in candidates):
        return counts(smallest(scores, candidates, count, dtype=dtype, run=run, views=views))
    low, high = _range(prefix - BINS // 2, dtype)
    numbers, values = [], []
    for i, candidate in enumerate(candidates):
        score = scores(i).to(dtype).flatten()
        below, within = run(below_and_inside)(score, candidate.view(torch.uint8).flatten(), low, high)
        numbers.append(int(torch.count_nonzero(below)))
        values.append(score[_where(within)])
    taken = torch.cat(values).argsort(stable=True)[:rank]
    starts = torch.tensor([0, *(len(each) for each in values)]).cumsum(0)
    inside = torch.bincount(torch.searchsorted(starts, taken, right=True) - 1, minlength=len(values)).tolist()
    return [below + within for below, within in zip(numbers, inside, strict=True)]


def smallest_of_each(
    scores: Scores,
    candidates: Sequence[Tensor],
    numbers: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
    views: Sequence[View] = (),
) -> list[Tensor]:
    """For each tensor alone, mark the `numbers[i]` smallest scores among its candidates; see `smallest`."""

    def alone(i: int) -> Scores:
        return lambda _: scores(i)

    if not _sortable(candidates, dtype) and all(view.key is None for view in views):
        asked = [i for i, number in enumerate(numbers) if number]
        found = [search(alone(i), [candidates[i]], numbers[i], dtype) for i in asked]
        _check(found, [numbers[i] for i in asked], lambda job: NotFiniteError(asked[job]))
        marks = dict(zip(asked, (one.marks[0] for one in found), strict=True))
        return [marks[i] if i in marks else torch.zeros_like(mask) for i, mask in enumerate(candidates)]
    chosen = []
    for i, (candidate, number) in enumerate(zip(candidates, numbers, strict=True)):
        try:
            chosen += smallest(alone(i), [candidate], number, dtype=dtype, run=run, views=views[i : i + 1])
        except NotFiniteError:
            raise NotFiniteError(i) from None
    return chosen


def _smallest_of_all_ranks(
    scores: Scores, candidates: Sequence[Tensor], count: int, dtype: torch.dtype, views: Sequence[View]
) -> list[Tensor]:
    """`smallest`, where ranks hold shards of the tensors. An error is raised on all of them."""
    marks, available, strange = search_views(scores, candidates, count, dtype, views)
    if strange:
        beyond = [~torch.isfinite(scores(i).to(dtype)) & mask for i, mask in enumerate(candidates)]
        raise NotFiniteError(next(i for i, number in enumerate(total_counts(beyond, views)) if number))
    if not 0 < count <= available:
        raise _too_few(count, available)
    if sum(total_counts(marks, views)) != count:
        raise _impure()
    return marks


def _sortable(candidates: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether the few scores near the k-th smallest are sorted, which is fastest on the CPU."""
    return dtype.is_floating_point and all(candidate.device.type == "cpu" for candidate in candidates)


def _check(found: Sequence[Found], numbers: Sequence[int], not_finite: Callable[[int], NotFiniteError]) -> None:
    """Check what searches found, with one transfer from each device for all of them."""
    read = iter(read_integers([number for one in found for number in (one.available, one.not_finite, one.marked)]))
    for job, (count, available, strange, marked) in enumerate(zip(numbers, read, read, read, strict=True)):
        if strange:
            raise not_finite(job)
        if not 0 < count <= available:
            raise _too_few(count, available)
        if marked != count:
            raise _impure()


def _leading_histogram(scores: Scores, candidates: Sequence[Tensor], dtype: torch.dtype, run: Run) -> Tensor:
    """The number of candidates with each leading digit, in the order of the scores."""
    total = torch.zeros(BINS + 1, dtype=torch.int64, device="cpu")
    for i, candidate in enumerate(candidates):
        bits = scores(i).to(dtype).view(integer_of(dtype)).flatten()
        chosen = candidate.view(torch.uint8).flatten()
        for start in range(0, len(bits), BLOCK):
            digits = run(leading_digits)(bits[start : start + BLOCK], chosen[start : start + BLOCK])
            total += torch.bincount(digits, minlength=BINS + 1)
    # Negative numbers come first. The larger their bits, the smaller they are.
    total = torch.cat([total[1 : BINS // 2 + 1].flip(0), total[BINS // 2 + 1 :]])
    beyond = bins_beyond_finite(dtype)
    if total[:beyond].any() or total[-beyond:].any():
        raise _not_finite(scores, candidates, dtype)
    return total


def _not_finite(scores: Scores, candidates: Sequence[Tensor], dtype: torch.dtype) -> NotFiniteError:
    strange = (i for i, mask in enumerate(candidates) if not torch.isfinite(scores(i).to(dtype))[mask].all())
    return NotFiniteError(next(strange))


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
        below, within = run(below_and_inside)(score, candidate.view(torch.uint8).flatten(), low, high)
        index = _where(within)
        chosen.append(below.view(torch.bool))
        indices.append(index)
        values.append(score[index])
    order = torch.cat(values).argsort(stable=True)
    if len(order) != inside:
        raise _impure()
    picked = torch.zeros(inside, dtype=torch.bool, device="cpu")
    picked[order[:rank]] = True
    for mark, index, pick in zip(chosen, indices, picked.split([len(index) for index in indices]), strict=True):  # type: ignore[no-untyped-call]
        mark[index[pick]] = True
    return [mark.view(candidate.shape) for mark, candidate in zip(chosen, candidates, strict=True)]


def _where(marks: Tensor) -> Tensor:
    """The indices of the few ones among bytes of 0 and 1, searched eight bytes at a time."""
    whole = len(marks) // 8 * 8
    words = marks[:whole].view(torch.int64).nonzero()
    near = (words * 8 + torch.arange(8, device="cpu")).flatten()
    return torch.cat([near[marks[near] > 0], marks[whole:].nonzero().squeeze(1) + whole])


def _bits(scores: Tensor, dtype: torch.dtype) -> Tensor:
    return (scores.to(dtype) + 0.0).view(integer_of(dtype))  # + 0.0: -0.0 becomes 0.0, for they are equal


def _range(prefix: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The smallest and the largest score with a leading digit."""
    shift, most = bits_of(dtype) - DIGIT, torch.iinfo(integer_of(dtype)).max
    last = (prefix << shift) + (1 << shift) - 1 - (prefix == -1)  # its last would be -0.0, which equals 0.0
    keys = torch.tensor([prefix << shift, last], dtype=integer_of(dtype), device="cpu")
    bits = keys ^ (keys >> (bits_of(dtype) - 1) & most)
    low, high = bits.view(dtype)
    return low, high


def _too_few(count: int, available: int) -> ValueError:
    return ValueError(f"cannot choose {count} of {available} weights")


def _impure() -> RuntimeError:
    return RuntimeError(
        "the criterion returned different scores for the same weights; it must be a pure function of its arguments "
        "(for random scores, use the statistic `uniform`)"
    )

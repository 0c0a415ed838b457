"""The exact k smallest scores over tensors of which each rank holds a shard.

The search is that of `digits`, with histograms that are summed over the ranks: every rank finds the same k-th smallest
score. Equal scores are taken in the order of (tensor, index in the whole tensor): how many of them each tensor gives
follows from their counts, and in the one tensor that gives some of them, a second search over the indices finds where
to stop. So it does not matter how a tensor is cut. Nothing but histograms and counts is exchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..views import View
from .digits import BINS, DIGIT, Scores, bins_beyond_finite, bits_of, find_bin, histogram_of, ordered
from .host_numbers import counts


def total_counts(marks: Sequence[Tensor], views: Sequence[View]) -> list[int]:
    """The number of marked elements of each tensor, over all ranks."""
    here = torch.tensor(counts(marks), dtype=torch.int64, device="cpu")
    return [int(number) for number in sum_views(here, views)] if len(here) else []


def sum_views(numbers: Tensor, views: Sequence[View]) -> Tensor:
    """One number for each tensor, summed over the ranks, with one exchange for all views of the same key."""
    total = numbers.clone()
    for first, members in _together(views):
        if first.key is not None:
            total[members] = first.sum(numbers[members])
    return total


def search_views(
    scores: Scores, candidates: Sequence[Tensor], count: int, dtype: torch.dtype, views: Sequence[View]
) -> tuple[list[Tensor], int, int]:
    """Mark the `count` smallest scores among the candidates of all ranks.

    Returns the marks, and the numbers of candidates and of candidates whose score is not finite, over all ranks. If
    these are wrong, so are the marks.
    """
    shift = bits_of(dtype) - DIGIT
    leading = _total_histogram(scores, candidates, dtype, shift, None, views)
    beyond = bins_beyond_finite(dtype)
    strange = int(leading[:beyond].sum() + leading[BINS - beyond :].sum())
    available = int(leading.sum())
    if strange or not 0 < count <= available:
        return [], available, strange
    digit, rank = find_bin(leading, torch.full((), count, dtype=torch.int64, device="cpu"))
    prefix = digit - BINS // 2
    while shift:
        shift -= DIGIT
        digit, rank = find_bin(_total_histogram(scores, candidates, dtype, shift, prefix, views), rank)
        prefix = prefix << DIGIT | digit
    below, equal = [], []
    for i, candidate in enumerate(candidates):
        keys, threshold = ordered(scores(i), dtype), prefix.to(candidate.device)
        below.append(candidate & (keys < threshold))
        equal.append(candidate & (keys == threshold))
    return (
        [
            low | _first(mark, number, here, view)
            for low, mark, (number, here), view in zip(
                below, equal, _taken(equal, int(rank), views), views, strict=True
            )
        ],
        available,
        0,
    )


def _taken(equal: Sequence[Tensor], rank: int, views: Sequence[View]) -> list[tuple[int, int]]:
    """For each tensor, how many of its equal scores are taken, and how many there are, over all ranks."""
    taken = []
    for number in total_counts(equal, views):
        taken.append((min(rank, number), number))
        rank -= taken[-1][0]
    return taken


def _first(marks: Tensor, number: int, available: int, view: View) -> Tensor:
    """The first `number` of the marked elements in the order of the whole tensor; `available` are marked in all."""
    if number in (0, available):
        return marks if number else torch.zeros_like(marks)
    if view.key is None:
        return marks & (marks.flatten().cumsum(0) <= number).view(marks.shape)
    elements = view.elements().to(marks.device)
    return search_views(lambda _: elements, [marks], number, torch.int64, [view])[0][0]


def _total_histogram(
    scores: Scores,
    candidates: Sequence[Tensor],
    dtype: torch.dtype,
    shift: int,
    prefix: Tensor | None,
    views: Sequence[View],
) -> Tensor:
    """The histogram of `digits.histogram_of`, over all ranks."""
    total = torch.zeros(BINS, dtype=torch.int64, device="cpu")
    for first, members in _together(views):
        here = histogram_of(
            lambda n, members=members: scores(members[n]),  # type: ignore[misc]
            [candidates[i] for i in members],
            dtype,
            shift,
            prefix,
            torch.device("cpu"),
        )
        total += first.sum(here)
    return total


def _together(views: Sequence[View]) -> list[tuple[View, list[int]]]:
    """The tensors whose numbers are summed together: one of their views, and their places. All ranks have the same."""
    groups: dict[Hashable, list[int]] = {}
    for place, view in enumerate(views):
        groups.setdefault(view.key, []).append(place)
    return [(views[members[0]], members) for members in groups.values()]

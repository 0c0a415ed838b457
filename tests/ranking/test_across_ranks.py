"""Ranking over ranks that hold shards of tensors. Threads stand for ranks: each waits for what the others send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.problems import NotFiniteError
from flipout.ranking import choose, smallest
from flipout.ranking.across_ranks import total_counts
from flipout.ranking.ranking import smallest_of_each
from flipout.views import Positions, View, whole


class Exchange:
    """What ranks send each other: every rank puts its numbers down, and all read them."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.table: dict[int, Tensor] = {}

    def sum(self, rank: int, numbers: Tensor) -> Tensor:
        self.table[rank] = numbers.clone()
        self.barrier.wait()
        total = torch.stack([self.table[other] for other in sorted(self.table)]).sum(0)
        self.barrier.wait()
        return total


class ThreadView(View):
    """The elements of a tensor that a rank holds, given by their numbers."""

    key = "all"

    def __init__(self, rank: int, exchange: Exchange, size: int, numbers: Tensor) -> None:
        super().__init__(Positions(torch.Size([size]), (numbers,)))
        self.rank, self.exchange = rank, exchange

    def sum(self, numbers: Tensor) -> Tensor:
        return self.exchange.sum(self.rank, numbers)


Rank = tuple[list[Tensor], list[Tensor], list[View]]
"""The scores, the candidates and the views of a rank."""


def on_ranks(ranks: Sequence[Rank], act: Callable[..., list[Tensor]]) -> list[Any]:
    """What each rank returns or raises."""

    def run(rank: Rank) -> Any:
        scores, candidates, views = rank
        try:
            return act(lambda i: scores[i], candidates, views)
        except (ValueError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def cut(
    scores: Sequence[Tensor], candidates: Sequence[Tensor], owners: Sequence[Tensor | None], ranks: int
) -> list[Rank]:
    """Give each rank the elements of each tensor that it owns; a tensor without owners is on every rank."""
    exchange, held = Exchange(ranks), []
    for rank in range(ranks):
        mine: Rank = [], [], []
        for score, candidate, owner in zip(scores, candidates, owners, strict=True):
            where = torch.arange(len(score)) if owner is None else (owner == rank).nonzero().squeeze(1)
            mine[0].append(score[where])
            mine[1].append(candidate[where])
            mine[2].append(whole(score) if owner is None else ThreadView(rank, exchange, len(score), where))
        held.append(mine)
    return held


def joined(results: Sequence[list[Tensor]], owners: Sequence[Tensor | None]) -> list[Tensor]:
    """The marks of whole tensors. Ranks that hold the same elements must have marked the same."""
    found = []
    for number, owner in enumerate(owners):
        marks = [result[number] for result in results]
        if owner is None:
            assert all(torch.equal(mark, marks[0]) for mark in marks)
            found.append(marks[0])
            continue
        together = torch.zeros(len(owner), dtype=torch.bool)
        for rank, mark in enumerate(marks):
            together[owner == rank] = mark
        found.append(together)
    return found


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Tensor], list[Tensor], list[Tensor | None], int, torch.dtype]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ranks, kind = draw(st.integers(2, 3)), draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    values = draw(st.sampled_from([2, 5, 10_000]))
    scores, candidates, owners = [], [], []
    for size in draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)):
        numbers = torch.randint(-values, values, (size,), generator=generator)
        scores.append(numbers if kind == torch.int64 else numbers.to(kind) / 3)
        candidates.append(torch.rand(size, generator=generator) < 0.8)
        sharded = draw(st.booleans())
        owners.append(torch.randint(0, ranks, (size,), generator=generator) if sharded else None)
    return scores, candidates, owners, ranks, kind


@given(networks(), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_same_marks_as_on_one_device(
    network: tuple[list[Tensor], list[Tensor], list[Tensor | None], int, torch.dtype], share: float
) -> None:
    scores, candidates, owners, ranks, dtype = network
    count = round(share * sum(int(mask.sum()) for mask in candidates))
    expected = smallest(lambda i: scores[i], candidates, count, dtype=dtype)
    found = on_ranks(
        cut(scores, candidates, owners, ranks),
        lambda scores, masks, views: smallest(scores, masks, count, dtype=dtype, views=views),
    )
    assert all(map(torch.equal, joined(found, owners), expected))


@given(networks(), st.floats(0, 1), st.integers(0, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_same_choice_under_floors_and_layer_by_layer(
    network: tuple[list[Tensor], list[Tensor], list[Tensor | None], int, torch.dtype],
    share: float,
    floor: int,
    per_layer: bool,
) -> None:
    scores, _, owners, ranks, dtype = network
    candidates = [torch.ones_like(score, dtype=torch.bool) for score in scores]
    floors = [min(floor, len(score)) for score in scores]
    size = sum(map(len, scores))
    options: dict[str, Any] = {"floors": floors, "per_layer": per_layer, "dtype": dtype}
    keep = sum(floors) + round(share * (size - sum(floors)))
    expected = choose(lambda i: scores[i], candidates, keep, **options)
    found = on_ranks(
        cut(scores, candidates, owners, ranks),
        lambda scores, masks, views: choose(scores, masks, keep, views=views, **options),
    )
    assert all(map(torch.equal, joined(found, owners), expected))
    assert sum(int(mark.sum()) for mark in joined(found, owners)) == size - keep


def test_an_error_is_raised_on_every_rank() -> None:
    scores, masks = [torch.tensor([1.0, torch.nan, 3.0, 4.0]), torch.zeros(2)], [torch.ones(4) > 0, torch.ones(2) > 0]
    owners = [torch.tensor([1, 1, 0, 0]), None]
    found = on_ranks(cut(scores, masks, owners, 2), lambda s, m, p: smallest(s, m, 2, views=p))
    assert [(type(error), error.tensor) for error in found] == [(NotFiniteError, 0)] * 2
    found = on_ranks(cut(scores, masks, owners, 2), lambda s, m, p: smallest_of_each(s, m, [1, 1], views=p))
    assert [(type(error), error.tensor) for error in found] == [(NotFiniteError, 0)] * 2
    finite = [score.nan_to_num() for score in scores]
    found = on_ranks(cut(finite, masks, owners, 2), lambda s, m, p: smallest(s, m, 7, views=p))
    assert [str(error) for error in found] == ["cannot choose 7 of 6 weights"] * 2


@pytest.mark.parametrize("owner", [torch.tensor([0, 0, 1]), None])
def test_counts(owner: Tensor | None) -> None:
    ranks = cut([torch.zeros(3)], [torch.tensor([True, False, True])], [owner], 2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: total_counts(rank[1], rank[2]), ranks)) == [[2], [2]]
    assert total_counts([], []) == []

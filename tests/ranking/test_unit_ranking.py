"""Choosing whole units of different sizes, against going through them one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.problems import NotFiniteError
from flipout.ranking import unit_ranking
from flipout.ranking.reachable_counts import least_reachable
from flipout.ranking.unit_ranking import choose_units, lowest_units, planned_counts

VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.0000001, 2.0, 3e38, 1e-40]
Case = tuple[list[Tensor], list[Tensor], list[int]]


@st.composite
def units(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 4))
    scores, masks = [], []
    for _ in range(number):
        length = draw(st.integers(0, 6))
        dtype = draw(st.sampled_from([torch.float32, torch.float64]))
        scores.append(
            torch.tensor(draw(st.lists(st.sampled_from(VALUES), min_size=length, max_size=length)), dtype=dtype)
        )
        masks.append(torch.tensor(draw(st.lists(st.booleans(), min_size=length, max_size=length)), dtype=torch.bool))
    return scores, masks, [draw(st.sampled_from([1, 2, 3, 4, 6, 9])) for _ in range(number)]


def sums(sizes: list[int]) -> set[int]:
    found = {0}
    for size in sizes:
        found |= {total + size for total in found}
    return found


def one_by_one(scores: list[Tensor], masks: list[Tensor], sizes: list[int], due: int) -> list[Tensor]:
    """Go through the units from the lowest score up; take one if those after it can still make up what is missing."""
    ranked = sorted(
        (float(score[i]), t, i)
        for t, (score, mask) in enumerate(zip(scores, masks, strict=True))
        for i in range(len(score))
        if mask[i]
    )
    due = min(total for total in sums([sizes[t] for _, t, _ in ranked]) if total >= due)
    chosen = [torch.zeros_like(mask) for mask in masks]
    for place, (_, t, i) in enumerate(ranked):
        if due - sizes[t] in sums([sizes[other] for _, other, _ in ranked[place + 1 :]]):
            due -= sizes[t]
            chosen[t][i] = True
    assert due == 0
    return chosen


@pytest.mark.parametrize("few", [0, 1000])
@settings(deadline=None)
@given(case=units(), data=st.data())
def test_the_lowest_units_that_add_up(few: int, case: Case, data: st.DataObject) -> None:
    scores, masks, sizes = case
    total = sum(int(mask.sum()) * size for mask, size in zip(masks, sizes, strict=True))
    due = data.draw(st.integers(0, total))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_ranking, "FEW", few)  # by histograms, or by sorting
        chosen = lowest_units(lambda i: scores[i], masks, sizes, due, dtype=torch.float64)
    expected = one_by_one(scores, masks, sizes, due)
    assert all(torch.equal(a, b) for a, b in zip(chosen, expected, strict=True))


@settings(deadline=None)
@given(units(), st.data())
def test_floors_protect_the_highest_units_of_their_tensor(case: Case, data: st.DataObject) -> None:
    scores, masks, sizes = case
    kept = [int(mask.sum()) for mask in masks]
    floors = [data.draw(st.integers(0, number)) for number in kept]
    total = sum(number * size for number, size in zip(kept, sizes, strict=True))
    keep = data.draw(st.integers(sum(f * s for f, s in zip(floors, sizes, strict=True)), total))
    chosen = choose_units(lambda i: scores[i], masks, sizes, keep, floors=floors, dtype=torch.float64)
    left = [number - int(mark.sum()) for number, mark in zip(kept, chosen, strict=True)]
    assert all(number >= floor for number, floor in zip(left, floors, strict=True))
    spare: dict[int, int] = {}
    for size, number, floor in zip(sizes, kept, floors, strict=True):
        spare[size] = spare.get(size, 0) + number - floor
    expected = total - least_reachable(spare, total - keep)
    assert sum(number * size for number, size in zip(left, sizes, strict=True)) == expected <= keep
    # The same number is known from the sizes alone.
    units: dict[int, int] = {}
    least: dict[int, int] = {}
    for size, number, floor in zip(sizes, kept, floors, strict=True):
        units[size], least[size] = units.get(size, 0) + number, least.get(size, 0) + floor
    assert planned_counts(units, least, [total, keep]) == [planned_counts(units, least, [total, keep])[0], expected]


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_planned_counts_fall_in_whole_units_and_never_exceed_what_is_asked(
    units: dict[int, int], data: st.DataObject
) -> None:
    total = sum(size * number for size, number in units.items())
    asked = sorted(data.draw(st.lists(st.integers(0, total), min_size=1, max_size=5)), reverse=True)
    counts = planned_counts(units, {}, asked)
    common = max(units, key=lambda size: (size * units[size], size))
    assert counts == sorted(counts, reverse=True)
    assert all(keep - common < count <= keep for keep, count in zip(asked[:-1], counts, strict=False))
    every = sums([size for size, number in units.items() for _ in range(number)])
    assert counts[-1] == max(n for n in every if n <= asked[-1])


@pytest.mark.parametrize("few", [0, 1000])
def test_a_score_that_is_not_finite_is_named(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_ranking, "FEW", few)
    scores = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan]), torch.tensor([3.0])]
    masks = [torch.ones_like(score, dtype=torch.bool) for score in scores]
    with pytest.raises(NotFiniteError) as error:
        lowest_units(lambda i: scores[i], masks, [2, 3, 1], 4)
    assert error.value.tensor == 1

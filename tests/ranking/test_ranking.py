"""The exact k smallest, against sorting everything."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.problems import NotFiniteError
from flipout.ranking import apportion, choose, numbers_of_smallest, smallest
from flipout.runtime.compiler import compiled

# Few distinct values make many ties; both signs, both zeros, subnormals and extremes.
VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-40, -1e-40, 65504.0, -65504.0, 1.0000001, 3e38, -3e38]
SHAPES = [(0,), (1,), (7,), (3, 4), (2, 3, 2), (1, 1, 3, 3)]


@st.composite
def scored(draw: st.DrawFn, values: list[float] = VALUES) -> tuple[list[Tensor], list[Tensor]]:
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    tensors, masks = [], []
    for shape in shapes:
        size = torch.Size(shape).numel()
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]))
        tensors.append(
            torch.tensor(draw(st.lists(st.sampled_from(values), min_size=size, max_size=size)))
            .to(dtype)
            .nan_to_num(posinf=1.0, neginf=-1.0)
            .view(shape)
        )
        masks.append(
            torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=torch.bool).view(shape)
        )
    return tensors, masks


def by_sorting(tensors: list[Tensor], masks: list[Tensor], count: int) -> list[Tensor]:
    ranked = sorted(
        (float(tensor.flatten()[i]), t, i)
        for t, (tensor, mask) in enumerate(zip(tensors, masks, strict=True))
        for i in range(tensor.numel())
        if mask.flatten()[i]
    )
    chosen = [torch.zeros(mask.numel(), dtype=torch.bool) for mask in masks]
    for _, t, i in ranked[:count]:
        chosen[t][i] = True
    return [flat.view_as(mask) for flat, mask in zip(chosen, masks, strict=True)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@given(scored(), st.data())
def test_exactly_the_smallest_by_score_tensor_and_index(
    case: tuple[list[Tensor], list[Tensor]], data: st.DataObject
) -> None:
    tensors, masks = case
    count = data.draw(st.integers(0, sum(int(mask.sum()) for mask in masks)))
    chosen = smallest(lambda i: tensors[i], masks, count, dtype=torch.float64)
    assert same(chosen, by_sorting(tensors, masks, count))
    numbers = numbers_of_smallest(lambda i: tensors[i], masks, count, dtype=torch.float64)
    assert numbers == [int(marks.sum()) for marks in chosen]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60), st.data())
def test_any_float32(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    everything = torch.ones(len(values), dtype=torch.bool)
    count = data.draw(st.integers(0, len(values)))
    assert same(smallest(lambda _: tensor, [everything], count), by_sorting([tensor], [everything], count))


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-41), (torch.float64, 1e-310)])
def test_negative_scores_next_to_zero(dtype: torch.dtype, tiny: float) -> None:
    tensor, everything = torch.tensor([-tiny, -2 * tiny, 0.0, -0.0, 1.0], dtype=dtype), torch.ones(5, dtype=torch.bool)
    for count in range(6):
        chosen = smallest(lambda _: tensor, [everything], count, dtype=dtype)
        assert same(chosen, by_sorting([tensor], [everything], count))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(VALUES[:9]), min_size=9),
    st.data(),
)
def test_compiled_work_chooses_the_same(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    alive = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    count = data.draw(st.integers(0, int(alive.sum())))
    chosen = smallest(lambda _: tensor, [alive], count, run=compiled)
    assert same(chosen, by_sorting([tensor], [alive], count))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60), st.data())
def test_any_float64_in_double_precision(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    everything = torch.ones(len(values), dtype=torch.bool)
    count = data.draw(st.integers(0, len(values)))
    chosen = smallest(lambda _: tensor, [everything], count, dtype=torch.float64)
    assert same(chosen, by_sorting([tensor], [everything], count))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_tensors_agree_with_a_stable_sort(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in [(300, 200), (64, 3, 3, 3), (1000,)]]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    order = flat.sort(stable=True).indices
    for count in (1, 777, 30_000, flat.numel() - 1):
        expected = torch.zeros(flat.numel(), dtype=torch.bool)
        expected[order[:count]] = True
        masks = [torch.ones_like(tensor, dtype=torch.bool) for tensor in tensors]
        chosen = smallest(lambda i: tensors[i], masks, count)
        assert torch.equal(torch.cat([mark.flatten() for mark in chosen]), expected)


@pytest.mark.parametrize(("ties", "passes"), [(False, 2), (True, 3)])
def test_scores_are_asked_for_one_tensor_at_a_time_and_never_joined(
    ties: bool, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the few in the narrow range of the threshold are put together and sorted."""
    asked: list[int] = []
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.ones(10_000) if ties else torch.rand(10_000, generator=generator) + 0.01 for _ in range(3)]

    def scores(i: int) -> Tensor:
        asked.append(i)
        return tensors[i]

    def few(name: str) -> Any:
        real = getattr(torch, name)

        def checked(what: Any, *arguments: Any, **options: Any) -> Any:
            size = sum(part.numel() for part in what) if isinstance(what, (list, tuple)) else what.numel()
            assert size <= 1000 or size == 1 << 16, name  # (a histogram has 65,536 bins)
            return real(what, *arguments, **options)

        return checked

    for name in ("cat", "concat", "concatenate", "stack", "sort", "argsort", "topk", "kthvalue"):
        monkeypatch.setattr(torch, name, few(name))
    chosen = smallest(scores, [torch.ones(10_000, dtype=torch.bool)] * 3, 15_000)
    assert sum(int(mark.sum()) for mark in chosen) == 15_000
    assert asked == [0, 1, 2] * passes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_is_no_number_names_its_tensor(value: float, dtype: torch.dtype) -> None:
    tensors = [torch.ones(5, dtype=dtype), torch.tensor([1.0, value, 2.0], dtype=dtype)]
    everything = [torch.ones_like(tensor, dtype=torch.bool) for tensor in tensors]
    with pytest.raises(NotFiniteError, match="tensor 1"):
        smallest(lambda i: tensors[i], everything, 4, dtype=dtype)
    everything[1][1] = False  # a score that nobody asks for
    assert smallest(lambda i: tensors[i], everything, 7, dtype=dtype)[1].tolist() == [True, False, True]


def test_a_criterion_that_changes_its_mind_is_told_so() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match="pure function"):
        smallest(lambda _: torch.rand(1000, generator=generator), [torch.ones(1000, dtype=torch.bool)], 500)


@pytest.mark.parametrize("count", [-1, 4])
def test_a_count_that_cannot_be(count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot choose {count} of 3"):
        smallest(lambda _: torch.ones(3), [torch.ones(3, dtype=torch.bool)], count)


def one_at_a_time(tensors: list[Tensor], masks: list[Tensor], keep: int, floors: list[int]) -> list[Tensor]:
    """In order of score, prunes what its layer can spare, until only `keep` are left."""
    kept = [int(mask.sum()) for mask in masks]
    gone = [torch.zeros_like(mask) for mask in masks]
    ranked = sorted(
        (float(tensor.flatten()[i]), t, i)
        for t, (tensor, mask) in enumerate(zip(tensors, masks, strict=True))
        for i in range(tensor.numel())
        if mask.flatten()[i]
    )
    for _, t, i in ranked:
        if sum(kept) > keep and kept[t] > floors[t]:
            gone[t].view(-1)[i] = True
            kept[t] -= 1
    return gone


@given(scored(), st.data())
def test_floors_against_pruning_one_at_a_time(case: tuple[list[Tensor], list[Tensor]], data: st.DataObject) -> None:
    tensors, masks = case
    kept = [int(mask.sum()) for mask in masks]
    floors = [data.draw(st.integers(0, n)) for n in kept]
    keep = data.draw(st.integers(sum(floors), sum(kept)))
    chosen = choose(lambda i: tensors[i], masks, keep, floors=floors, dtype=torch.float64)
    assert same(chosen, one_at_a_time(tensors, masks, keep, floors))


SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=6)


@given(SIZES, st.data())
def test_apportioned_shares_are_exact_fair_and_above_their_floors(sizes: list[int], data: st.DataObject) -> None:
    floors = [data.draw(st.integers(0, n)) for n in sizes]
    keep = data.draw(st.integers(sum(floors), sum(sizes)))
    shares = apportion(sizes, keep, floors)
    assert sum(shares) == keep
    assert all(floor <= share <= n for floor, share, n in zip(floors, shares, sizes, strict=True))
    # Of two layers above their floors, neither could give the other a weight and leave them more alike.
    lost = [n - share for n, share in zip(sizes, shares, strict=True)]
    for i, n in enumerate(sizes):
        for j, m in enumerate(sizes):
            if lost[i] and shares[j] > floors[j]:
                assert (lost[i] - 0.5) / n <= (lost[j] + 0.5) / m + 1e-9


@given(SIZES, st.data())
def test_apportioned_shares_never_rise_as_less_is_kept(sizes: list[int], data: st.DataObject) -> None:
    floors = [data.draw(st.integers(0, min(n, 3))) for n in sizes]
    less, more = sorted(data.draw(st.integers(sum(floors), sum(sizes))) for _ in range(2))
    assert all(a <= b for a, b in zip(apportion(sizes, less, floors), apportion(sizes, more, floors), strict=True))


def test_floors_that_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="floors"):
        apportion([10, 10], 5, [4, 4])


def test_each_layer_alike() -> None:
    tensors = [torch.arange(100.0), torch.arange(50.0) + 1000]
    masks = [torch.ones(100, dtype=torch.bool), torch.ones(50, dtype=torch.bool)]
    gone = choose(lambda i: tensors[i], masks, 15, floors=[0, 0], per_layer=True)
    assert [int(mark.sum()) for mark in gone] == [90, 45]
    assert not gone[0][90:].any()
    assert not gone[1][45:].any()


def test_scores_are_never_all_in_memory() -> None:
    """Thirty tensors: what is held at once is a few times the scores of one, and a byte for each weight's mark."""
    weights = [torch.randn(200_000) for _ in range(30)]
    alive = [torch.ones(200_000, dtype=torch.bool) for _ in weights]
    with torch.profiler.profile(profile_memory=True) as profile:
        chosen = smallest(lambda i: weights[i].square(), alive, 3_000_000)
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    held = itertools.accumulate(e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]")
    marks, scores_of_one, scores_of_all = 6_000_000, 800_000, 24_000_000
    assert sum(int(mark.sum()) for mark in chosen) == 3_000_000
    assert max(held) < marks + 10 * scores_of_one < scores_of_all

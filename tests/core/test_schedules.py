"""When to prune and to what count, against the paper's table and plain arithmetic."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flipout import Constant, Cubic, Geometric, OneShot
from flipout.schedules import AtThreshold, Never, nonzero

SPARSITIES = st.decimals(min_value=0, max_value=Decimal("0.9999"), places=4).map(float)


@given(st.integers(1, 10**9), SPARSITIES)
def test_the_count_is_rounded_on_the_decimal_as_written(prunable: int, sparsity: float) -> None:
    exact = Decimal(prunable) * (1 - Decimal(str(sparsity)))
    assert nonzero(prunable, sparsity) == int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    ("prunable", "sparsity", "kept"), [(250, 0.99, 2), (350, 0.99, 4), (10, 0.55, 4), (10, 0.45, 6)]
)
def test_halves_go_to_even(prunable: int, sparsity: float, kept: int) -> None:
    assert nonzero(prunable, sparsity) == kept


@given(
    st.sampled_from([Geometric, Cubic]),
    SPARSITIES,
    st.integers(2, 5000),
    st.integers(1, 10**8),
    st.integers(1, 300),
    st.tuples(st.integers(0, 100), st.integers(0, 99)).map(sorted),
)
def test_every_plan_falls_to_exactly_the_sparsity(
    kind: type[Geometric], sparsity: float, steps: int, prunable: int, prunings: int, window: list[int]
) -> None:
    start, end = window[0] / 100, window[1] / 100
    first, last = round(start * steps), round(end * steps)
    assume(prunings <= last - first and last < steps)
    plan = kind(sparsity, steps, prunings=prunings, window=(start, end)).plan(prunable)
    counts = [pruning.nonzero for pruning in plan]
    moments = [pruning.step for pruning in plan]
    assert len(plan) == prunings
    assert counts[-1] == nonzero(prunable, sparsity)
    assert all(a is not None and b is not None and a >= b for a, b in pairwise([prunable, *counts]))
    assert all(a < b for a, b in pairwise(moments))
    assert first < moments[0]
    assert moments[-1] == last
    gaps = [b - a for a, b in pairwise([first, *moments])]
    assert max(gaps) - min(gaps) <= 1
    assert all(pruning.sparsity == 1 - (pruning.nonzero or 0) / prunable for pruning in plan)


@given(SPARSITIES, st.integers(1, 20))
def test_geometric_removes_the_same_share_each_time(sparsity: float, prunings: int) -> None:
    d = 10**12
    counts = [d, *(p.nonzero or 0 for p in Geometric(sparsity, 1000, prunings, (0, 0.5)).plan(d))]
    share = (1 - sparsity) ** (1 / prunings)
    for before, after in pairwise(counts):
        assert after / before == pytest.approx(share, rel=1e-6)


def test_cubic_is_zhu_and_guptas() -> None:
    plan = Cubic(0.8, 100, prunings=10, window=(0, 0.5)).plan(1000)
    assert [p.step for p in plan] == [5 * i for i in range(1, 11)]
    assert [p.nonzero for p in plan] == [
        round(1000 * (1 - (0.8 + (0 - 0.8) * (1 - i / 10) ** 3))) for i in range(1, 11)
    ]


def test_the_default_is_a_hundred_prunings_between_5_and_50_percent() -> None:
    plan = Geometric(0.99, 10_000).plan(10**6)
    assert len(plan) == 100
    assert (plan[0].step, plan[-1].step) == (545, 5000)


@pytest.mark.parametrize(("steps", "prunings"), [(2, 1), (3, 2), (10, 5), (100, 45), (300, 100)])
def test_a_short_training_prunes_fewer_times_by_default(steps: int, prunings: int) -> None:
    assert len(Geometric(0.9, steps).plan(1000)) == prunings


@pytest.mark.parametrize(("m", "every"), [(2, 117), (4, 70), (6, 50), (8, 39), (10, 32)])
def test_table_1(m: int, every: int) -> None:
    per_epoch = 391
    plan = Geometric.paper(1 - 2.0**-m, 350 * per_epoch, steps_per_epoch=per_epoch).plan(2**20)
    assert [p.step for p in plan] == [every * i * per_epoch for i in range(1, m + 1)]
    assert [p.nonzero for p in plan] == [2 ** (20 - i) for i in range(1, m + 1)]


def test_the_papers_rate_is_adjusted_to_meet_the_sparsity() -> None:
    plan = Geometric.paper(0.99, 350).plan(10_000)  # log2(100) = 6.64: seven prunings of a little less than half
    assert len(plan) == 7
    assert plan[-1].nonzero == 100
    assert [p.step for p in plan] == [44 * i for i in range(1, 8)]


def test_the_papers_schedule_with_another_rate() -> None:
    assert len(Geometric.paper(0.99, 1000, rate=0.2).plan(10_000)) == 21
    assert len(Geometric.paper(0.0, 10).plan(100)) == 1


@pytest.mark.parametrize(("at", "step"), [(0, 0), (0.25, 25), (1, 100)])
def test_one_shot(at: float, step: int) -> None:
    assert OneShot(0.75, 100, at).plan(100) == [(step, 0.75, 25)]


def test_a_threshold_does_not_know_its_count() -> None:
    assert AtThreshold(100, 0.7).plan(1000) == [(70, None, None)]


def test_never() -> None:
    assert Never(10).plan(1000) == []
    assert Never(10).moments() == []


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 99.0, float("nan")])
def test_a_sparsity_that_cannot_be(sparsity: float) -> None:
    with pytest.raises(ValueError, match=r"sparsity is .*0\.99 for 99 %"):
        Geometric(sparsity, 100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Geometric(0.9, 0), "steps is 0"),
        (lambda: Geometric(0.9, 1), "train for more steps"),
        (lambda: Geometric(0.9, 10, prunings=6), "6 prunings do not fit into the 5 steps"),
        (lambda: Geometric(0.9, 10, prunings=0), "give a whole number of at least 1"),
        (lambda: Geometric(0.9, 10, window=(0.5, 0.2)), "window"),
        (lambda: Geometric(0.9, 10, window=(0.5, 1.2)), "window"),
        (lambda: Geometric(0.9, 10, window=(0, 0.99)), "leaves no step to train on afterwards"),
        (lambda: Geometric.paper(0.999, 10), "10 steps are too few for 10 prunings"),
        (lambda: Geometric.paper(0.999, 1000, steps_per_epoch=100), "leave steps_per_epoch at 1"),
        (lambda: Geometric.paper(0.999, 1000, steps_per_epoch=3), "whole number of epochs"),
        (lambda: Geometric.paper(0.9, 1000, rate=1.0), "rate"),
    ],
)
def test_a_schedule_that_cannot_be_names_the_fix(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(1, 10**6), st.floats(0, 0.9999), st.integers(1, 50))
@example(50, 0.95, 4)
@example(250, 0.99, 4)
def test_a_constant_schedule_is_constant(prunable: int, sparsity: float, prunings: int) -> None:
    plan = Constant(sparsity, 1000, prunings=prunings).plan(prunable)
    assert plan[0].step == 0
    assert {pruning.nonzero for pruning in plan} == {nonzero(prunable, sparsity)}

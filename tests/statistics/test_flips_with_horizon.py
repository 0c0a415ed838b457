"""Flips that are forgotten: the packed counts against float64, compiled against eager, and resumed."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import flipout
from flipout.criteria import flip_saliency
from flipout.forms.form import _fused
from flipout.numerics import zero_pruned
from flipout.runtime.compiler import compiled
from flipout.runtime.kernels import _score_kernel
from flipout.statistics import Flips, Place, Value
from flipout.statistics.flips import count_in_parts, read_parts
from tests.helpers import assert_masked, mlp, sgd, train

WEIGHTS = 5


def counted(history: list[list[float]], horizon: int) -> Tensor:
    """The counts of the statistic after steps that give these weights."""
    weight = torch.tensor(history[0])
    statistic = Flips(weight, Place(), horizon=horizon)
    statistic.changed(weight)
    for step, values in enumerate(history[1:], 1):
        weight.copy_(torch.tensor(values))
        kernel = statistic.kernel_at(step)
        assert kernel is not None
        kernel(weight, torch.ones_like(weight, dtype=torch.uint8), *statistic.elements.values())
    return statistic.value(weight, len(history))


def changes(history: list[list[float]]) -> Any:
    signs = np.sign(np.array(history))
    return (signs[1:] != signs[:-1]).astype(np.float64)


HISTORIES = st.lists(
    st.lists(st.sampled_from([1.0, -1.0, 0.0]), min_size=WEIGHTS, max_size=WEIGHTS), min_size=1, max_size=120
)


@settings(deadline=None)
@given(HISTORIES, st.integers(1, 200))
def test_counts_fade_as_they_do_in_float64(history: list[list[float]], horizon: int) -> None:
    window = math.ceil(horizon / 8)
    expected = np.zeros(WEIGHTS)
    for step, changed in enumerate(changes(history), 1):
        expected += changed
        if step % window == 0:
            expected *= math.exp(-window / horizon)
    assert np.abs(counted(history, horizon).double().numpy() - expected).max() < 0.1


@settings(deadline=None)
@given(HISTORIES, st.integers(8, 200))
def test_a_flip_is_forgotten_exponentially(history: list[list[float]], horizon: int) -> None:
    """Each flip has its weight `exp(-age / horizon)`, up to the age difference within one window."""
    smooth = np.zeros(WEIGHTS)
    for changed in changes(history):
        smooth = smooth * math.exp(-1 / horizon) + changed
    factor = math.exp(math.ceil(horizon / 8) / horizon)
    found = counted(history, horizon).double().numpy()
    assert (found <= smooth * factor + 0.1).all()
    assert (found >= smooth / factor - 0.1).all()


def test_a_weight_that_rests_is_forgiven_and_one_that_flips_always_has_the_most() -> None:
    restless = [[(-1.0) ** step] * WEIGHTS for step in range(400)]
    assert (counted(restless, 100) > 95).all()
    assert (counted([*restless, *[[1.0] * WEIGHTS] * 1000], 100) < 0.1).all()
    assert (counted([[(-1.0) ** step] * WEIGHTS for step in range(3000)], 2000) <= 255.99).all()


@pytest.mark.parametrize("horizon", [0, -3])
def test_a_horizon_is_at_least_one_step(horizon: int) -> None:
    with pytest.raises(ValueError, match=f"horizon is {horizon}"):
        Flips(torch.zeros(3), Place(), horizon=horizon)


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(2, 40), st.integers(2, 150)), st.integers(0, 2**32))
def test_compiled_is_eager_bit_for_bit(shape: tuple[int, int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator)
    mask = torch.randint(2, shape, generator=generator, dtype=torch.uint8)
    low = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    high = torch.randint(192, shape, generator=generator, dtype=torch.uint8)
    settle = _fused(((count_in_parts, 2),), zero_pruned, 0, False)
    score = _score_kernel(
        flip_saliency, (("weight", Value.reader, 0), ("flips", read_parts, 2)), (("p", "float", "2.0"),)
    )
    results = []
    for run in (compiled, lambda function: function):
        tensors = [weight.clone(), mask, low.clone(), high.clone()]
        run(settle)(*tensors)
        results.append([*tensors, run(score)(tensors[0], *tensors[2:])])
    for fast, slow in zip(*results, strict=True):
        assert torch.equal(fast, slow)


@pytest.mark.parametrize("compile", [True, False])
def test_a_training_counts_what_its_weights_did(compile: bool) -> None:  # noqa: A002
    model = mlp()
    optimizer = sgd(model, lr=0.5)
    schedule = flipout.OneShot(0.5, 60, 1.0)
    pruner = flipout.PaperFlipOut(
        model, optimizer, sparsity=0.5, steps=60, horizon=20, schedule=schedule, compile=compile
    )
    signs = [{weight.name: weight.parameter.detach().sign().clone() for weight in pruner.weights}]
    train(
        model,
        optimizer,
        59,
        after=lambda: signs.append(
            {weight.name: weight.parameter.detach().sign().clone() for weight in pruner.weights}
        ),
    )
    for name, flips in pruner.statistics["flips"].items():
        expected = torch.zeros_like(flips, dtype=torch.float64)
        for step in range(1, 60):
            expected += signs[step][name] != signs[step - 1][name]
            if step % 3 == 0:
                expected *= math.exp(-3 / 20)
        assert expected.max() > 1
        assert (flips - expected).abs().max() < 0.1


def test_any_criterion_can_use_a_horizon_and_resume_bit_for_bit(tmp_path: Path) -> None:
    def attached(seed: int) -> tuple[Any, torch.optim.Optimizer, flipout.Pruner]:
        model = mlp(seed)
        optimizer = sgd(model, lr=0.3)
        pruner = flipout.Pruner(
            model,
            optimizer,
            criterion=lambda weight, flips: weight.abs() / (flips + 1).pow(0.25),
            schedule=flipout.Geometric(0.9, 40),
            statistics={"flips": partial(Flips, horizon=30)},
        )
        return model, optimizer, pruner

    model, optimizer, pruner = attached(0)
    train(model, optimizer, 14)  # between two windows of 4 steps
    torch.save([model.state_dict(), optimizer.state_dict(), pruner.state_dict()], tmp_path / "state.pt")
    train(model, optimizer, 40, skip=14, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 35

    other, other_optimizer, other_pruner = attached(1)
    weights, moments, state = torch.load(tmp_path / "state.pt", weights_only=True)
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(moments)
    other_pruner.load_state_dict(state)
    train(other, other_optimizer, 40, skip=14)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    for name, flips in pruner.statistics["flips"].items():
        assert torch.equal(flips, other_pruner.statistics["flips"][name])


def test_a_state_notices_another_horizon() -> None:
    def attached(horizon: int | None) -> flipout.Pruner:
        model = mlp()
        return flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=40, horizon=horizon)

    state = attached(100).state_dict()
    attached(100).load_state_dict(copy.deepcopy(state))
    for other in (50, None):
        with pytest.raises(ValueError, match=r"flips\.horizon"):
            attached(other).load_state_dict(state)


def test_the_default_is_the_exact_count() -> None:
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=40)
    state = pruner.weights[0].statistics["flips"].state
    assert [tensor.dtype for tensor in state.values()] == [torch.uint8, torch.uint8]
    assert pruner.statistics["flips"]["0.weight"].dtype == torch.int32


def test_a_subclass_keeps_its_own_value() -> None:
    class Doubled(Flips):
        def value(self, weight: Tensor, step: int) -> Tensor:
            return 2 * super().value(weight, step)

    assert Doubled(torch.zeros(3), Place(), horizon=10).reader is None
    assert Doubled(torch.zeros(3), Place(), horizon=10).kernel is count_in_parts

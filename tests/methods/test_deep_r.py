"""Deep-R, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flipout
from flipout.forms import FixedSigns
from flipout.random_numbers import normal
from flipout.weights import count_weights
from tests.helpers import assert_masked, batches, cross_entropy, mlp, sgd, signs_of, train


@pytest.mark.parametrize("temperature", [None, 1e-4])
def test_deep_r_step_by_step(temperature: float | None) -> None:
    """The paper's update, connection by connection, for plain SGD."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    initial = [model.get_parameter(f"{i}.weight").detach().clone() for i in (0, 2, 4)]
    pruner = flipout.DeepR(model, optimizer, sparsity=0.6, steps=30, l1=0.01, temperature=temperature, seed=4)
    assert isinstance(pruner, flipout.DeepR)
    assert pruner.nonzero == 141
    assert all(torch.equal(s, w.sign().to(torch.int8)) for s, w in zip(signs_of(pruner).values(), initial, strict=True))
    T = 0.5 * 0.01**2 / 18 if temperature is None else temperature  # noqa: N806
    rewired = 0
    for step, (x, y) in enumerate(batches(30)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        before = [weight.parameter.detach().clone() for weight in pruner.weights]
        masks = [weight.mask.clone() for weight in pruner.weights]
        grads = [weight.parameter.grad.clone() for weight in pruner.weights if weight.parameter.grad is not None]
        optimizer.step()
        dormant_now = 0
        for number, weight in enumerate(pruner.weights):
            sign = signs_of(pruner)[weight.name]
            theta = before[number] * sign  # at least 0 where a connection is active
            noise = normal(theta.shape, seed=4, step=step, tensor=weight.number) * sign
            moved = theta - 0.5 * (grads[number] * sign + 0.01) - math.sqrt(2 * 0.5 * T) * noise
            active = masks[number] & (moved >= 0)
            dormant_now += int((masks[number] & (moved < 0)).sum())
            assert not (active & ~weight.mask).any()
            torch.testing.assert_close(weight.parameter.detach()[active], (moved * sign)[active], rtol=1e-4, atol=1e-6)
            woken = weight.mask & ~active
            assert not weight.parameter.detach()[woken].any()
        rewired += dormant_now
        assert pruner.nonzero == 141
        assert_masked(pruner)
    assert rewired > 30


def test_deep_r_wakes_any_dormant_connection_alike() -> None:
    model = mlp()
    pruner = flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10)
    assert isinstance(pruner.form, FixedSigns)
    start = [weight.mask.clone() for weight in pruner.weights]
    counts = torch.zeros(352)
    for step in range(400):
        pruner.form._activate(pruner.weights, 44, step)
        woken = [weight.mask & ~before for weight, before in zip(pruner.weights, start, strict=True)]
        counts += torch.cat([mark.flatten() for mark in woken])
        for weight, before in zip(pruner.weights, start, strict=True):
            weight.mask.copy_(before)
        count_weights(pruner.weights)
    dormant = ~torch.cat([mask.flatten() for mask in start])
    assert counts[dormant].sum() == 400 * 44
    assert not counts[~dormant].any()
    statistic = float(((counts[dormant] - 100) ** 2 / (400 * 0.25 * 0.75)).sum())  # chi-square, 176 degrees
    assert 100 < statistic < 260


@pytest.mark.parametrize(("options", "least"), [({"scope": "layer"}, [77, 51, 13]), ({"floor": 10}, [10, 10, 10])])
def test_deep_r_keeps_what_each_layer_is_owed(options: dict[str, Any], least: list[int]) -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.5)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.6, steps=30, l1=0.05, **options)

    def check() -> None:
        assert pruner.nonzero == 141
        assert all(weight.kept >= n for weight, n in zip(pruner.weights, least, strict=True))

    train(model, optimizer, 30, after=check)


def test_deep_r_gives_a_sign_to_what_starts_at_zero() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()
    pruner = flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10)
    assert isinstance(pruner, flipout.DeepR)
    signs = signs_of(pruner)["0.weight"]
    assert set(signs.unique().tolist()) == {-1, 1}
    with pytest.raises(ValueError, match="l1 is -1"):
        flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10, l1=-1.0)


def test_deep_r_does_not_hide_a_nan() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=10)
    for weight in pruner.weights:
        weight.parameter.grad = torch.zeros_like(weight.parameter)
    model[2].weight.grad = torch.full_like(model.get_parameter("2.weight"), float("nan"))
    with pytest.raises(FloatingPointError, match=r"2\.weight has NaN"):
        optimizer.step()
    with pytest.raises(ValueError, match="noise="):
        flipout.METHODS["deep-r"](mlp(), sgd(mlp()), sparsity=0.5, steps=10, noise=1.0)


def test_deep_r_pulls_to_zero_also_when_the_optimizer_maximizes() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=10, l1=0.1, temperature=0.0)
    before = sum(float(weight.parameter.detach().abs().sum()) for weight in pruner.weights)
    for weight in pruner.weights:
        weight.parameter.grad = torch.zeros_like(weight.parameter)
    optimizer.step()
    assert sum(float(weight.parameter.detach().abs().sum()) for weight in pruner.weights) < before

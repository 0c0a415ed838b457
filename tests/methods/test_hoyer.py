"""Hoyer-Square against its formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flipout
from flipout.methods.hoyer import hoyer_square
from tests.helpers import mlp, sgd, train


def test_hoyer_square_against_its_formula() -> None:
    model = mlp()
    pruner = flipout.HoyerSquare(model, sgd(model), steps=100, lambda_=0.3)
    expected = 0.0
    for i in (0, 2, 4):
        values = [float(v) for v in model.get_parameter(f"{i}.weight").detach().flatten()]
        expected += 0.3 * sum(map(abs, values)) ** 2 / sum(v * v for v in values)
    penalty = pruner.penalty()
    assert float(penalty.detach()) == pytest.approx(expected, rel=1e-5)
    penalty.backward()
    weight = model.get_parameter("0.weight").detach().double().requires_grad_()
    (0.3 * weight.abs().sum() ** 2 / (weight**2).sum()).backward()
    assert model[0].weight.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(model[0].weight.grad, weight.grad.float())


def test_hoyer_square_of_a_dead_layer_is_zero_with_a_finite_gradient() -> None:
    weight = torch.zeros(3, 3, requires_grad=True)
    value = hoyer_square(weight)
    value.backward()
    assert float(value.detach()) == 0
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros(3, 3))


def test_hoyer_square_prunes_below_its_threshold_and_then_stops_pulling() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.HoyerSquare(model, optimizer, steps=40, lambda_=1e-3, threshold=0.05)
    assert isinstance(pruner, flipout.HoyerSquare)
    assert str(pruner.plan()).endswith("by threshold")
    seen: list[tuple[int, int]] = []

    def record() -> None:
        seen.append((pruner.step, sum(int((weight.parameter.abs() >= 0.05).sum()) for weight in pruner.weights)))

    pruner.stepped = record  # type: ignore[method-assign]
    train(model, optimizer, 27, penalty=pruner.penalty)
    assert float(pruner.penalty().detach()) > 0
    assert pruner.sparsity == 0
    train(model, optimizer, 40, skip=27, penalty=pruner.penalty)
    assert [event.step for event in pruner.events] == [28]
    assert pruner.nonzero == dict(seen)[28] < 352
    assert float(pruner.penalty()) == 0
    assert not pruner.penalty().requires_grad


def test_hoyer_square_to_an_exact_sparsity_and_with_a_floor() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.HoyerSquare(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 40, penalty=pruner.penalty)
    assert pruner.nonzero == 35
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.HoyerSquare(model, optimizer, steps=40, threshold=100.0, floor=2)
    train(model, optimizer, 40, penalty=pruner.penalty)
    assert [weight.kept for weight in pruner.weights] == [2, 2, 2]


@pytest.mark.parametrize("options", [{"lambda_": -1.0}, {"lambda_": math.nan}, {"threshold": -1.0}, {"fine_tune": 1.5}])
def test_hoyer_square_with_nonsense(options: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=next(iter(options))):
        flipout.HoyerSquare(model, sgd(model), steps=10, **options)

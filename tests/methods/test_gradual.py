"""Relative magnitude, LAMP and Fisher: against slow versions, on real data, resumed and compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.core.test_criteria import slow_lamp
from tests.helpers import batches, cross_entropy, make, mlp, sgd, train
from tests.methods.digits import accuracy_of
from tests.methods.masks import equal, smallest


def at_first_pruning(method: str, **options: Any) -> tuple[flipout.Pruner, list[Tensor], list[Tensor]]:
    """Trains up to and including one pruning at step 10; the weights before it, and the mean squared gradients."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, sparsity=0.5, schedule=flipout.OneShot(0.5, 40, 0.25), **options)
    weights: list[Tensor] = []

    def record() -> None:
        weights[:] = [weight.parameter.detach().clone() for weight in pruner.weights]

    pruner.stepped = record  # type: ignore[method-assign]
    means = [torch.zeros_like(weight.parameter, dtype=torch.float64) for weight in pruner.weights]
    for x, y in batches(10):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        for mean, weight in zip(means, pruner.weights, strict=True):
            assert weight.parameter.grad is not None
            mean += weight.parameter.grad.double().square() / 10
        optimizer.step()
    assert pruner.nonzero == 176
    return pruner, weights, means


def test_relative_magnitude() -> None:
    pruner, weights, _ = at_first_pruning("relative-magnitude")
    scores = [weight.abs() * root for weight, root in zip(weights, (12**0.5, 4.0, 8**0.5), strict=True)]
    assert equal(pruner, smallest(scores, 176))


def test_lamp() -> None:
    pruner, weights, _ = at_first_pruning("lamp")
    scores = [torch.tensor(slow_lamp(weight.flatten().tolist())).view_as(weight) for weight in weights]
    assert equal(pruner, smallest(scores, 176))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("compile", [True, False])
def test_fisher(power: float, compile: bool) -> None:  # noqa: A002
    pruner, weights, means = at_first_pruning("fisher", power=power, compile=compile)
    scores = [weight.double() ** 2 * mean**power for weight, mean in zip(weights, means, strict=True)]
    expected = smallest(scores, 176)
    off = sum(int((a != b).sum()) for a, b in zip(pruner.masks.values(), expected, strict=True))
    assert off <= 2  # rounding may swap two neighbours


def test_lamp_prunes_gradually_among_what_is_left() -> None:
    """Each event ranks the weights that are left: pruned ones are in no sum."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make("lamp", model, optimizer, sparsity=0.9, schedule=flipout.Geometric(0.9, 40, prunings=6))
    before = [weight.mask.clone() for weight in pruner.weights]
    original = pruner.prune
    checked = 0

    def prune(pruning: Any) -> None:
        nonlocal checked
        flat = torch.cat([mask.flatten() for mask in before])
        scores = torch.full_like(flat, -1.0, dtype=torch.float64)
        start = 0
        for weight, mask in zip(pruner.weights, before, strict=True):
            values = weight.parameter.detach()[mask].tolist()
            scores[start : start + mask.numel()][mask.flatten()] = torch.tensor(slow_lamp(values), dtype=torch.float64)
            start += mask.numel()
        original(pruning)
        keep = torch.zeros_like(flat)
        keep[scores.sort(stable=True).indices[-pruning.nonzero :]] = True
        assert torch.equal(torch.cat([mask.flatten() for mask in pruner.masks.values()]), keep)
        for mask, weight in zip(before, pruner.weights, strict=True):
            mask.copy_(weight.mask)
        checked += 1

    pruner.prune = prune  # type: ignore[method-assign]
    train(model, optimizer, 40)
    assert checked == 6


def test_lamp_kills_no_layer() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    pruner = flipout.LAMP(model, optimizer, sparsity=1 - 3 / 352, steps=20)
    train(model, optimizer, 20)
    assert [weight.kept for weight in pruner.weights] == [1, 1, 1]


@pytest.mark.parametrize("method", ["relative-magnitude", "lamp", "fisher"])
def test_real_digits(method: str) -> None:
    assert accuracy_of(method, sparsity=0.9) > 0.8


@pytest.mark.parametrize("method", ["relative-magnitude", "lamp", "fisher"])
def test_common_options(method: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    options: dict[str, Any] = {"scope": "global", "floor": 7, "noise": 0.5, "exclude": "4", "schedule": "paper"}
    pruner = make(method, model, optimizer, **options)
    train(model, optimizer, 40)
    assert pruner.nonzero == 32
    assert all(weight.kept >= 7 for weight in pruner.weights)


def test_a_state_notices_other_settings_of_fisher() -> None:
    def attached(**options: Any) -> flipout.Pruner:
        model: nn.Module = mlp()
        return flipout.Fisher(model, sgd(model), sparsity=0.5, steps=40, **options)

    state = attached().state_dict()
    attached().load_state_dict(copy.deepcopy(state))
    with pytest.raises(ValueError, match=r"criterion\.power: 1\.0 .*0\.5"):
        attached(power=0.5).load_state_dict(state)
    with pytest.raises(ValueError, match=r"fisher\.horizon: 100 .*10"):
        attached(horizon=10).load_state_dict(state)


@pytest.mark.parametrize("options", [{"power": -1.0}, {"power": float("nan")}, {"horizon": 0}])
def test_invalid_settings_of_fisher(options: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=next(iter(options))):
        flipout.Fisher(model, sgd(model), sparsity=0.5, steps=40, **options)

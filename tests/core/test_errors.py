"""Bad moments: the error names what is wrong, and nothing is lost."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import batches, cross_entropy, mlp, sgd, train


def test_optimizers_that_cannot_be_hooked() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="LBFGS"):
        flipout.PaperFlipOut(model, torch.optim.LBFGS(model.parameters()), sparsity=0.5, steps=10)
    with pytest.raises(TypeError, match="optimizer is a list"):
        flipout.AimTest(model, list(model.parameters()))  # type: ignore[arg-type]


def test_a_second_pruner_on_the_same_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    first = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)
    for other in (optimizer, sgd(model)):
        with pytest.raises(ValueError, match=r"0\.weight, 2\.weight, 4\.weight: PaperFlipOut.*remove\(\)"):
            flipout.GlobalMagnitude(model, other, sparsity=0.5, steps=10)
    first.remove()
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10)


def test_criteria_that_cannot_be() -> None:
    def build(criterion: Any) -> None:
        model = mlp()
        optimizer = sgd(model)
        flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.5, 10))
        train(model, optimizer, 10)

    with pytest.raises(ValueError, match=r"weights, hessian.*weight, grad, full_grad, flips"):
        build(lambda weights, hessian: weights)
    for nonsense in (torch.abs, "magnitude"):
        with pytest.raises(ValueError, match="signature"):
            build(nonsense)
    with pytest.raises(ValueError, match="criterion"):
        build(lambda: torch.ones(3))
    with pytest.raises(ValueError, match=r"\(16,\).*0\.weight.*\(16, 12\)"):
        build(lambda weight: weight.abs().sum(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_name_their_layer_and_prune_nothing(value: float) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 10)
    kept = pruner.nonzero
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    row = int(pruner.masks["2.weight"].any(1).nonzero()[0])
    column = int(pruner.masks["2.weight"][row].nonzero()[0])
    optimizer.zero_grad()
    with torch.no_grad():
        model.get_parameter("2.weight")[row, column] = value
    with pytest.raises(FloatingPointError, match=r"2\.weight .*step 11"):
        optimizer.step()
    assert pruner.nonzero == kept
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", [flipout.PaperFlipOut, flipout.FlipOut])
def test_a_nan_in_a_pruned_place_is_no_harm(method: type[flipout.FlipOut], compile: bool) -> None:  # noqa: A002
    model = mlp()
    optimizer = sgd(model)
    pruner = method(model, optimizer, sparsity=0.9, steps=20, compile=compile)
    train(model, optimizer, 10)
    for x, y in batches(3, seed=8):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        for weight in pruner.weights:
            assert weight.parameter.grad is not None
            weight.parameter.grad[~weight.mask] = float("nan")
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_sparse_gradient() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10, include=["0", "1"])
    model(torch.tensor([1, 2])).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"0\.weight .*sparse=False"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_warnings_as_errors_leave_a_pruning_whole() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("4.weight").mul_(1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=4, rounds=1)
    early = [weight.parameter.detach().clone() for weight in pruner.weights]
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadLayerWarning)
        with pytest.raises(flipout.DeadLayerWarning):
            train(model, optimizer, 2)
    assert pruner.finished
    assert "not finished" not in str(pruner.summary())
    for weight, values in zip(pruner.weights, early, strict=True):
        assert torch.equal(weight.parameter.detach(), values * weight.mask)


def test_a_pruner_nobody_keeps_still_prunes() -> None:
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)

    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer)
    gc.collect()
    train(model, optimizer, 20)
    zeros: list[Tensor] = [model.get_parameter(f"{i}.weight").detach() == 0 for i in (0, 2, 4)]
    assert sum(int(zero.sum()) for zero in zeros) == 352 - 35

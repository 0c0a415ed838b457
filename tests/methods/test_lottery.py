"""Lottery tickets: rounds, rewinding."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import flipout
from tests.helpers import assert_masked, batches, convnet, cross_entropy, fresh, mlp, same, sgd, train
from tests.methods.masks import equal, smallest


@pytest.mark.parametrize("rewind_to", [0, 3, None])
def test_lottery(rewind_to: int | None) -> None:
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    rounds, steps = 3, 40
    pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=steps, rounds=rounds, rewind_to=rewind_to)
    assert [pruning.step for pruning in pruner.plan()] == [10, 20, 30]
    early: dict[str, Tensor] = {}

    def snapshot() -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    if rewind_to == 0:
        early = snapshot()
    torch.manual_seed(3)
    for x, y in batches(steps, shape=(1, 6, 6)):
        masks = {name: mask.clone() for name, mask in pruner.masks.items()}
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if pruner.step == rewind_to:
            early = snapshot()
        if pruner.step in (10, 20, 30):
            if rewind_to is None:
                assert optimizer.state
                continue
            assert not optimizer.state
            for name, tensor in model.state_dict().items():
                mask = pruner.masks.get(name, torch.ones_like(tensor, dtype=torch.bool))
                assert torch.equal(tensor, torch.where(mask, early[name], torch.zeros_like(tensor))), name
            assert all(not (pruner.masks[name] & ~masks[name]).any() for name in masks)
    assert pruner.nonzero == round(pruner.prunable * 0.1)
    assert_masked(pruner)


def test_lottery_prunes_the_trained_weights_not_the_early_ones() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.5, steps=20, rounds=1)
    reference = mlp()
    train(reference, sgd(reference), 10)
    train(model, optimizer, 10)
    assert equal(pruner, smallest([reference.get_parameter(f"{i}.weight").detach().abs() for i in (0, 2, 4)], 176))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rewind_to": 7}, "before the first pruning, which is at 7"),
        ({"steps": 5}, "too few"),
    ],
)
def test_lottery_with_nonsense(options: dict[str, int], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        flipout.Lottery(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})  # type: ignore[arg-type]


def test_a_parameter_that_is_not_trained_may_be_infinite() -> None:
    """Such as a mask of attention."""
    model = mlp()
    model.register_parameter("mask", torch.nn.Parameter(torch.full((4,), -torch.inf), requires_grad=False))
    optimizer = sgd(model)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 10)
    pruner.load_state_dict(pruner.state_dict())
    train(model, optimizer, 40, skip=10)
    assert torch.equal(model.get_parameter("mask"), torch.full((4,), -torch.inf))


@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_a_state_whose_early_values_are_not_finite_is_refused(name: str) -> None:
    model, optimizer, pruner = fresh("lottery")
    train(model, optimizer, 5)
    before = pruner.state_dict()
    spoilt = copy.deepcopy(before)
    spoilt["extra"]["early"][name].view(-1)[1] = float("inf")
    with pytest.raises(ValueError, match=name):
        pruner.load_state_dict(spoilt)
    assert same(pruner.state_dict(), before)

"""Methods that prune and grow in one event, and what the optimizer keeps for a weight that changes."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp, sgd, train

SPEC = importlib.util.spec_from_file_location("rigl", Path(__file__).parent.parent.parent / "examples" / "rigl.py")
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
with patch.object(flipout, "register", lambda *_, **__: lambda cls: cls):  # not for the tests of all methods
    SPEC.loader.exec_module(example)
RigL: Callable[..., flipout.Pruner] = example.RigL

OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
}


def states(optimizer: torch.optim.Optimizer, weight: Tensor) -> list[Tensor]:
    return [value for value in optimizer.state[weight].values() if value.shape == weight.shape]


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_the_count_is_exact_after_every_event(optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    pruner = RigL(model, optimizer, sparsity=0.8, steps=40, updates=10, floor=4)
    assert pruner.nonzero == 70
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}

    def check() -> None:
        assert_masked(pruner)
        assert pruner.nonzero == 70

    train(model, optimizer, 40, after=check)
    assert pruner.finished
    assert len(pruner.events) == 11
    assert pruner.events[0].grown == 0
    assert all(event.grown > 0 for event in pruner.events[1:-1])
    assert any(not torch.equal(masks[name], mask) for name, mask in pruner.masks.items())


def test_the_weights_with_the_largest_gradients_grow() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.01)
    pruner = RigL(model, optimizer, sparsity=0.8, steps=40, updates=30)
    before = {name: mask.clone() for name, mask in pruner.masks.items()}
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    gradients = {weight.name: weight.grad.clone() for weight in pruner.weights if weight.grad is not None}
    optimizer.step()
    grown = {name: mask & ~before[name] for name, mask in pruner.masks.items()}
    count = pruner.events[-1].grown
    pruned = torch.cat([gradients[name].abs()[~before[name]] for name in before])
    taken = torch.cat([gradients[name].abs()[grown[name]] for name in before])
    assert len(taken) == count > 0
    assert torch.equal(taken.sort().values, pruned.sort().values[-count:])


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_what_changes_loses_its_optimizer_state(optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    pruner = RigL(model, optimizer, sparsity=0.5, steps=40, updates=8)
    pruned_before = [~weight.mask for weight in pruner.weights]

    def check() -> None:
        for weight, pruned in zip(pruner.weights, pruned_before, strict=True):
            grown = pruned & weight.mask
            for state in states(optimizer, weight.parameter):
                assert not state[~weight.mask].any()
                assert not state[grown].any()
            pruned.copy_(~weight.mask)

    train(model, optimizer, 40, after=check)


@pytest.mark.parametrize("method", ["magnitude", "flipout-paper"])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_pruning_clears_the_state_of_the_pruned_and_no_other(method: str, optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    schedule = flipout.OneShot(0.5, 20, at=0.5)
    pruner = flipout.METHODS[method](model, optimizer, sparsity=0.5, steps=20, schedule=schedule)
    train(model, optimizer, 10)
    for weight in pruner.weights:
        assert states(optimizer, weight.parameter)
        for state in states(optimizer, weight.parameter):
            assert not state[~weight.mask].any()
            assert state[weight.mask].count_nonzero() > 0.5 * weight.kept


def test_connections_that_deep_r_wakes_start_without_momentum() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.5)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=60, l1=1e-3)
    dormant = [~weight.mask for weight in pruner.weights]
    woken = 0

    def check() -> None:
        nonlocal woken
        for weight, was_dormant in zip(pruner.weights, dormant, strict=True):
            awake = was_dormant & weight.mask
            woken += int(awake.sum())
            (momentum,) = states(optimizer, weight.parameter)
            assert not momentum[awake].any()
            assert not momentum[~weight.mask].any()
            was_dormant.copy_(~weight.mask)

    train(model, optimizer, 60, after=check)
    assert woken > 0


def test_a_scalar_weight_keeps_its_step_count() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x) * self.scale
            return out

    model = Scaled()
    optimizer = torch.optim.Adam(model.parameters())
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=4, include=["scale", "linear.weight"])
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert float(optimizer.state[model.scale]["step"]) == 4


def test_resuming_a_method_that_grows_is_bit_exact(tmp_path: Path) -> None:
    def attached(model: nn.Module) -> tuple[torch.optim.Optimizer, flipout.Pruner]:
        optimizer = sgd(model)
        return optimizer, RigL(model, optimizer, sparsity=0.8, steps=40, updates=12)

    model = mlp()
    optimizer, pruner = attached(model)
    train(model, optimizer, 23)
    saved = tmp_path / "state.pt"
    torch.save([model.state_dict(), optimizer.state_dict(), pruner.state_dict()], saved)
    train(model, optimizer, 40, skip=23)

    other = mlp(seed=1)
    other_optimizer, other_pruner = attached(other)
    weights, moments, masks = torch.load(saved, weights_only=True)
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(moments)
    other_pruner.load_state_dict(masks)
    train(other, other_optimizer, 40, skip=23)
    assert other_pruner.events == pruner.events
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class Wrong(flipout.Pruner):
    """Prunes one weight too few, or marks what it must not."""

    wrong = "count"

    def select(self, keep: int) -> flipout.Selection:
        if self.wrong == "count":
            return super().select(keep + 1)
        chosen = super().select(keep)
        if self.wrong == "prune":
            return flipout.Selection([torch.ones_like(mark) for mark in chosen.prune])
        return flipout.Selection(chosen.prune, [weight.mask.clone() for weight in self.weights])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("count", "keeps 36 weights, but it must keep 35"),
        ("prune", "must mark kept weights"),
        ("grow", "and `grow` pruned"),
    ],
)
def test_a_wrong_selection_is_refused_and_changes_nothing(wrong: str, message: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.9, 10, prunings=2, window=(0, 0.4))
    pruner = Wrong(model, optimizer, criterion=flipout.criteria.magnitude, schedule=schedule)
    pruner.wrong = "right"
    pruner.select = partial(flipout.Pruner.select, pruner)  # type: ignore[method-assign]
    train(model, optimizer, 2)
    del pruner.select
    pruner.wrong = wrong
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    with pytest.raises(ValueError, match=message):
        train(model, optimizer, 4, skip=2)
    assert all(torch.equal(masks[name], mask) for name, mask in pruner.masks.items())
    assert len(pruner.events) == 1


def test_the_floors_hold_while_weights_grow() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = RigL(model, optimizer, sparsity=0.7, steps=60, updates=20, floor=0.15)

    def check() -> None:
        for weight, floor in zip(pruner.weights, pruner.floors, strict=True):
            assert weight.kept >= floor > 0

    train(model, optimizer, 60, after=check)


def test_rprop_starts_a_grown_weight_at_its_learning_rate() -> None:
    model = mlp()
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    pruner = RigL(model, optimizer, sparsity=0.5, steps=40, updates=8)
    pruned_before = [~weight.mask for weight in pruner.weights]
    grown = 0

    def check() -> None:
        nonlocal grown
        for weight, pruned in zip(pruner.weights, pruned_before, strict=True):
            fresh = pruned & weight.mask
            grown += int(fresh.sum())
            assert (optimizer.state[weight.parameter]["step_size"][fresh] == 0.01).all()
            pruned.copy_(~weight.mask)

    train(model, optimizer, 40, after=check)
    assert grown


@pytest.mark.parametrize("method", ["snip", "deep-r"])
def test_attaching_to_loaded_weights_and_moments_loses_nothing(method: str) -> None:
    """A pruner that prunes at step 0 is attached after the model and the optimizer were loaded: the usual order."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer)
    train(model, optimizer, 15)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    train(model, optimizer, 40, skip=15)

    other = mlp(seed=1)
    other_optimizer = sgd(other)
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    make(method, other, other_optimizer).load_state_dict(saved[2])
    train(other, other_optimizer, 40, skip=15)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)

"""Before the first step: a forgotten state, and weights that are loaded after the pruner was attached."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, signs_of, train

WEIGHTS = ("0.weight", "2.weight", "4.weight")
GRADUAL = ("flipout", "magnitude", "random", "hoyer-square", "magnitude-uncertainty", "lottery")


def checkpoint(seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A network that is pruned to 90 %, and the state of its pruner."""
    model = mlp(seed)
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, pruner.state_dict()


def load_with_torch(model: nn.Module, state: dict[str, Tensor]) -> None:
    model.load_state_dict(state)


def load_past_autograd(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])  # no version counter sees this


LOADERS = [load_with_torch, load_past_autograd]


@pytest.mark.parametrize("method", GRADUAL)
@pytest.mark.parametrize("loaded_first", [True, False])
def test_a_pruned_network_without_its_state_is_asked_about(method: str, loaded_first: bool) -> None:
    weights, _ = checkpoint()
    model = mlp(seed=1)
    if loaded_first:
        model.load_state_dict(weights)
    optimizer = sgd(model)
    make(method, model, optimizer)
    model.load_state_dict(weights)
    message = r"90\.1% .*pruner\.load_state_dict\(\).*flipout\.KeepZeros"
    with pytest.warns(flipout.ForgottenStateWarning, match=message):
        train(model, optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.ForgottenStateWarning)
        train(model, optimizer, 3, skip=1)


def test_deep_r_on_a_pruned_network_without_its_state() -> None:
    weights, _ = checkpoint()
    model = mlp(seed=1)
    model.load_state_dict(weights)
    optimizer = sgd(model)
    flipout.DeepR(model, optimizer, sparsity=0.5, steps=20)
    with pytest.warns(flipout.ForgottenStateWarning, match="DeepR"):
        train(model, optimizer, 1)


@pytest.mark.parametrize("model_first", [True, False])
def test_a_loaded_state_answers_the_question(model_first: bool) -> None:
    weights, state = checkpoint()
    model = mlp(seed=1)
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    if model_first:
        model.load_state_dict(weights)
    pruner.load_state_dict(state)
    model.load_state_dict(weights)
    train(model, optimizer, 21, skip=20)  # warnings are errors
    assert pruner.nonzero == 35
    assert_masked(pruner)


@pytest.mark.parametrize("method", ["keep-zeros", "dense"])
def test_what_does_not_prune_does_not_ask(method: str) -> None:
    weights, _ = checkpoint()
    model = mlp(seed=1)
    model.load_state_dict(weights)
    optimizer = sgd(model)
    make(method, model, optimizer)
    train(model, optimizer, 2)


def test_zeros_that_are_an_initialization_are_not_asked_about() -> None:
    """Adapters and heads start at zero altogether; a pruned layer of this size keeps some weight."""
    model = mlp()
    nn.init.zeros_(model.get_parameter("0.weight"))
    nn.init.zeros_(model.get_parameter("4.weight"))
    optimizer = sgd(model)
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=20)
    train(model, optimizer, 1)
    other = mlp()
    with torch.no_grad():
        other.get_parameter("0.weight")[:7] = 0  # less than half
    optimizer = sgd(other)
    flipout.GlobalMagnitude(other, optimizer, sparsity=0.5, steps=20)
    train(other, optimizer, 1)


# Weights that are loaded after the pruner was attached.


@pytest.mark.parametrize("load", LOADERS)
def test_deep_r_takes_the_signs_of_weights_that_are_loaded_later(load: Callable[..., None]) -> None:
    pretrained = mlp(seed=7).state_dict()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=20)
    load(model, pretrained)
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    train(model, optimizer, 1)
    for name in WEIGHTS:
        assert torch.equal(signs_of(pruner)[name], pretrained[name].sign().to(torch.int8))
        kept = masks[name] & pruner.masks[name]
        assert int(kept.sum()) >= int(masks[name].sum()) - 1  # hardly anything changes its sign in such a step
        torch.testing.assert_close(model.get_parameter(name).detach()[kept], pretrained[name][kept])
    assert_masked(pruner)
    assert pruner.nonzero == 176


def test_deep_r_keeps_its_signs_if_nothing_was_loaded() -> None:
    model = mlp()
    initial = {name: model.get_parameter(name).detach().sign().to(torch.int8) for name in WEIGHTS}
    optimizer = sgd(model, lr=0.5)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=20)
    train(model, optimizer, 20)
    assert all(torch.equal(signs_of(pruner)[name], sign) for name, sign in initial.items())


@pytest.mark.parametrize("load", LOADERS)
def test_lottery_rewinds_to_weights_that_are_loaded_later(load: Callable[..., None]) -> None:
    pretrained = {name: tensor.clone() for name, tensor in mlp(seed=7).state_dict().items()}
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.5, steps=20, rounds=1)
    load(model, pretrained)
    train(model, optimizer, 10)
    assert pruner.finished
    for name, tensor in model.state_dict().items():
        mask = pruner.masks.get(name, torch.ones_like(tensor, dtype=torch.bool))
        assert torch.equal(tensor, pretrained[name] * mask), name


def test_lottery_with_loaded_buffers() -> None:
    """The first forward pass changes them before the first step can see them."""
    model, pretrained = convnet(), convnet(seed=7)
    pretrained.get_buffer("1.running_mean").fill_(100.0)
    optimizer = sgd(model, lr=1e-4)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.5, steps=20, rounds=1)
    model.load_state_dict(pretrained.state_dict())
    train(model, optimizer, 10, shape=(1, 6, 6))
    assert pruner.finished
    assert torch.equal(model.get_parameter("1.weight"), pretrained.get_parameter("1.weight"))
    assert int(model.get_buffer("1.num_batches_tracked")) == 1
    assert (model.get_buffer("1.running_mean") > 80).all()


def test_a_state_that_is_saved_before_the_first_step_has_the_loaded_weights() -> None:
    pretrained = mlp(seed=7).state_dict()
    model = mlp()
    pruner = flipout.Lottery(model, sgd(model), sparsity=0.5, steps=20, rounds=1)
    model.load_state_dict(pretrained)
    state = pruner.state_dict()
    again = mlp(seed=3)
    optimizer = sgd(again)
    flipout.Lottery(again, optimizer, sparsity=0.5, steps=20, rounds=1).load_state_dict(state)
    again.load_state_dict(pretrained)
    train(again, optimizer, 10)
    assert torch.equal(again.get_parameter("0.bias"), pretrained["0.bias"])


@pytest.mark.parametrize("load", LOADERS)
def test_keep_zeros_keeps_those_of_weights_that_are_loaded_later(load: Callable[..., None]) -> None:
    weights, _ = checkpoint()
    model = mlp(seed=1)
    optimizer = sgd(model)
    pruner = flipout.KeepZeros(model, optimizer)
    load(model, weights)
    train(model, optimizer, 5)
    assert pruner.nonzero == 35
    assert_masked(pruner)
    assert all(torch.equal(pruner.masks[name], weights[name] != 0) for name in WEIGHTS)


class Movement(flipout.Statistic):
    """How far a weight has moved since the first step."""

    def __init__(self, weight: Tensor, place: Any) -> None:
        super().__init__(weight, place)
        self.state["start"] = weight.clone()

    def started(self, weight: Tensor) -> None:
        self.state["start"].copy_(weight)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return (weight - self.state["start"]).abs()


@pytest.mark.parametrize("resumed", [True, False])
def test_a_statistic_notes_the_weights_of_the_first_step(resumed: bool) -> None:
    def build(model: nn.Module) -> tuple[torch.optim.Optimizer, flipout.Pruner]:
        optimizer = sgd(model, lr=0.01)
        return optimizer, flipout.Pruner(
            model,
            optimizer,
            criterion=lambda movement: movement,
            schedule=flipout.OneShot(0.5, 20, at=0.5),
            statistics={"movement": Movement},
        )

    pretrained = mlp(seed=7).state_dict()
    model = mlp()
    optimizer, pruner = build(model)
    model.load_state_dict(pretrained)
    train(model, optimizer, 3)
    if resumed:
        other = mlp(seed=2)
        optimizer, again = build(other)
        other.load_state_dict(model.state_dict())
        again.load_state_dict(pruner.state_dict())
        model, pruner = other, again
        train(model, optimizer, 4, skip=3)
    start = pruner.weights[0].statistics["movement"].state["start"]
    assert torch.equal(start, mlp(seed=7).get_parameter("0.weight"))


# A pruning at step 0 is made from the weights that are there when the pruner is attached.


def at_once(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Any) -> flipout.Pruner:
    return flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.OneShot(0.5, 20, at=0))


@pytest.mark.parametrize("method", ["snip", "magnitude"])
@pytest.mark.parametrize("load", LOADERS)
def test_masks_of_weights_that_are_replaced_before_the_first_step(method: str, load: Callable[..., None]) -> None:
    def attach(model: nn.Module) -> tuple[torch.optim.Optimizer, flipout.Pruner]:
        optimizer = sgd(model)
        if method == "snip":
            return optimizer, make("snip", model, optimizer)
        return optimizer, at_once(model, optimizer, flipout.criteria.magnitude)

    model = mlp()
    optimizer, pruner = attach(model)
    load(model, mlp(seed=7).state_dict())
    with pytest.warns(flipout.StaleMasksWarning, match="before you create the pruner"):
        train(model, optimizer, 1)
    assert_masked(pruner)

    saved, state = model.state_dict(), pruner.state_dict()
    again = mlp(seed=3)
    optimizer, resumed = attach(again)
    load(again, saved)
    resumed.load_state_dict(state)
    train(again, optimizer, 3, skip=1)  # warnings are errors
    assert_masked(resumed)


def test_random_masks_do_not_depend_on_the_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = at_once(model, optimizer, flipout.criteria.random)
    model.load_state_dict(mlp(seed=7).state_dict())
    train(model, optimizer, 1)
    assert_masked(pruner)


def test_nothing_changes_for_a_pruning_at_once_without_loading() -> None:
    model = mlp()
    optimizer = sgd(model)
    at_once(model, optimizer, flipout.criteria.magnitude)
    for x, y in batches(3):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

"""`torch.distributed.checkpoint`: it loads into the states of new objects, and takes a step of its own to make them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_state_dict

import flipout
from tests.helpers import batches, cross_entropy, make, mlp, same, sgd, train

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage", "ignore:.*DCP")

Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": sgd,
    "plain": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.01),
    "tensor-lr": lambda model: torch.optim.Adam(model.parameters(), torch.tensor(0.01)),
    "groups": lambda model: torch.optim.SGD(
        [{"params": [p], "lr": 0.05 * (i + 1)} for i, p in enumerate(model.parameters())], momentum=0.9
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "flipout": {},
    "magnitude-uncertainty": {},
    "snip": {},
    "deep-r": {},
    "lottery": {"rewind_to": 3, "rounds": 2},
    "keep-zeros": {},
    "weight-noise": {"noise": flipout.GradientNoise(0.01, "weight")},
}


def fresh(method: str, make_optimizer: Make, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    model = mlp(seed)
    optimizer = make_optimizer(model)
    name = "flipout" if method == "weight-noise" else method
    return model, optimizer, make(name, model, optimizer, **METHODS[method])


@pytest.mark.parametrize(
    ("method", "optimizer_name"),
    [*((method, "sgd") for method in METHODS), *(("weight-noise", name) for name in OPTIMIZERS if name != "sgd")],
)
@pytest.mark.parametrize("pruner_first", [True, False])
def test_a_round_trip_in_any_order_ends_with_the_same_bits(
    method: str, optimizer_name: str, pruner_first: bool, tmp_path: Path
) -> None:
    """Against a training that is neither saved nor loaded."""
    make_optimizer = OPTIMIZERS[optimizer_name]
    reference, optimizer, untouched = fresh(method, make_optimizer, 0)
    train(reference, optimizer, 40)

    model, optimizer, pruner = fresh(method, make_optimizer, 0)
    train(model, optimizer, 13)
    optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    state_dict_saver.save({"model": weights, "optimizer": moments, "pruner": pruner}, checkpoint_id=tmp_path / "state")
    train(model, optimizer, 40, skip=13)  # saving changes nothing
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), model.parameters(), strict=True))

    other, optimizer, again = fresh(method, make_optimizer, 5)
    if pruner_first:  # before the step that creates the optimizer's state
        state_dict_loader.load({"pruner": again}, checkpoint_id=tmp_path / "state")
        assert again.step == 13
    weights, moments = get_state_dict(other, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "pruner": again.state_dict()}
    state_dict_loader.load(state, checkpoint_id=tmp_path / "state")
    set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if not pruner_first:
        again.load_state_dict(state["pruner"])
    assert again.step == 13
    assert len(again.events) == sum(pruning.step <= 13 for pruning in again.plan())
    train(other, optimizer, 40, skip=13)
    assert again.step == 40
    assert again.events == untouched.events
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), other.parameters(), strict=True))
    assert same(again.state_dict(), untouched.state_dict())


@pytest.mark.parametrize("order", list(permutations(("model", "optimizer", "pruner"))))
def test_parts_that_load_themselves_in_any_order(order: tuple[str, ...], tmp_path: Path) -> None:
    model, optimizer, pruner = fresh("flipout", sgd, 0)
    train(model, optimizer, 13)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "pruner": pruner}
    torch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "state.pt")
    train(model, optimizer, 40, skip=13)

    other, its_optimizer, again = fresh("flipout", sgd, 5)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    others: dict[str, Any] = {"model": other, "optimizer": its_optimizer, "pruner": again}
    for name in order:
        others[name].load_state_dict(saved[name])
    train(other, its_optimizer, 40, skip=13)
    assert same(again.state_dict(), pruner.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_pruner_is_saved_and_loaded_as_it_is(tmp_path: Path) -> None:
    model, optimizer, pruner = fresh("flipout", sgd, 0)
    train(model, optimizer, 13)
    state_dict_saver.save({"pruner": pruner}, checkpoint_id=tmp_path / "state")
    other, _, again = fresh("flipout", sgd, 5)
    other.load_state_dict(model.state_dict())
    state_dict_loader.load({"pruner": again}, checkpoint_id=tmp_path / "state")
    assert same(again.state_dict(), pruner.state_dict())
    assert again.events == pruner.events


def test_other_settings_are_named(tmp_path: Path) -> None:
    model, _, pruner = fresh("flipout", sgd, 0)
    state_dict_saver.save({"pruner": pruner}, checkpoint_id=tmp_path / "state")
    other = flipout.PaperFlipOut(model := mlp(), sgd(model), sparsity=0.8, steps=40)
    with pytest.raises(ValueError, match="sparsity"):
        state_dict_loader.load({"pruner": other}, checkpoint_id=tmp_path / "state")
    assert other.step == 0


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_a_step_that_initializes_the_optimizer_counts_nothing(optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    aim = flipout.AimTest(model, optimizer)
    before = pruner.state_dict()
    get_optimizer_state_dict(model, optimizer)
    assert same(pruner.state_dict(), before)
    assert not any(shots.any() for shots in aim.shots.values())
    train(model, optimizer, 5)
    optimizer.zero_grad()
    get_optimizer_state_dict(model, optimizer)  # plain SGD has still no state
    assert pruner.step == 5


def test_real_steps_with_a_learning_rate_of_zero_count() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.0)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 3)
    assert pruner.step == 3
    x, y = next(batches(1))
    optimizer.zero_grad()
    (cross_entropy(model(x), y) * 0).backward()
    next(iter(model.parameters())).grad = None
    optimizer.step()
    assert pruner.step == 4
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert pruner.step == 5

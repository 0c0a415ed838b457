"""Random loops with shrinking: the training is that of the whole network, or the network is not shrunk.

A few with fresh seeds run in every test session, many in `make attack`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.attacks import fresh_seeds, seeds

from .networks import NETWORKS, batch, build, parts_in_network
from .test_training_equality import METHODS, OPTIMIZERS

pytestmark = [
    pytest.mark.usefixtures("_free_shrinks"),
    pytest.mark.filterwarnings("ignore::flipout.DeadLayerWarning", "ignore::flipout.DivergenceWarning"),
]
STEPS = 14


class Lamb(torch.optim.Optimizer):
    """Looks at whole tensors in groups with decay, and at single weights in the others."""

    def __init__(self, params: Any, lr: float = 0.01, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = parameter.grad + group["decay"] * parameter
                    ratio = parameter.norm() / (update.norm() + 1e-6) if group["decay"] else 1.0
                    parameter.sub_(group["lr"] * ratio * update)
        return loss


def optimizer_of(model: nn.Module, chance: random.Random) -> tuple[torch.optim.Optimizer, bool]:
    """An optimizer, and whether it looks at whole tensors."""
    kind = chance.choice(["one group", "groups", "lamb"])
    if kind == "one group":
        return OPTIMIZERS[chance.choice(sorted(OPTIMIZERS))](model.parameters()), False
    single = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    if kind == "lamb":
        return Lamb([{"params": single, "decay": 0.0}, {"params": matrices, "decay": 0.01}]), True
    cut = chance.randint(0, len(matrices) - 1)
    groups = [{"params": single + matrices[:cut], "weight_decay": 0.0}, {"params": matrices[cut:], "lr": 0.02}]
    return OPTIMIZERS[chance.choice(sorted(OPTIMIZERS))](groups), False


def centralize(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.ndim > 1 and parameter.grad is not None:
                parameter.grad -= parameter.grad.mean()


def trained(seed: int, *, shrinks: bool) -> tuple[nn.Module, flipout.Pruner, list[float], bool, dict[str, Tensor]]:
    """Train in a random way; also return whether the network must not be shrunk in it, and what it has at the end."""
    chance = random.Random(f"shrinking {seed}")
    name, method = chance.choice(sorted(NETWORKS)), chance.choice(sorted(METHODS))
    model = build(name, seed % 100)
    optimizer, forbidden = optimizer_of(model, chance)
    accumulate, clip = chance.choice([1, 2]), chance.choice([None, 0.5])
    by_closure, decayed = chance.random() < 0.3, chance.random() < 0.3
    alone = chance.random() < 0.15  # the loop reads the output of a layer
    if chance.random() < 0.15:
        optimizer.register_step_pre_hook(centralize)
        forbidden = True
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95) if decayed else None
    sparsity = chance.choice([0.9, 0.97, 0.99])
    pruner = METHODS[method](model, optimizer, sparsity=sparsity, steps=STEPS, compile=False)
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))

    def backward(number: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part in range(accumulate):
            images, labels = batch(100 * part + number)
            loss = nn.functional.cross_entropy(model(images), labels) / accumulate
            if alone:
                given = images if isinstance(first, nn.Conv2d) else images.flatten(1)
                loss = loss + 1e-2 * first(given).square().mean()
            loss.backward()
            total += loss.detach()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        return total

    losses: list[float] = []
    for number in range(STEPS):
        if by_closure:
            losses.append(float(optimizer.step(lambda number=number: float(backward(number))) or 0))  # type: ignore[misc]
        else:
            losses.append(float(backward(number)))
            optimizer.step()
        if rates is not None:
            rates.step()
        if shrinks and pruner.worth_shrinking:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", flipout.NotShrunkWarning)
                pruner.shrink(batch(99)[0])
            assert not (pruner.shrunk and (forbidden or alone)), "it was shrunk"
    there = parts_in_network(pruner)
    pruner.expand()
    return model, pruner, losses, forbidden or alone, there


def attack(seed: int) -> None:
    whole, pruner, losses, _, _ = trained(seed, shrinks=False)
    model, shrunk, same_losses, forbidden, there = trained(seed, shrinks=True)
    assert not (forbidden and shrunk.shrinks)
    assert same_losses == pytest.approx(losses, rel=1e-9, abs=1e-9)
    assert [event.kept for event in shrunk.events] == [event.kept for event in pruner.events]
    for name, mask in pruner.masks.items():
        assert torch.equal(mask, shrunk.masks[name]), name
        one, other = (network.get_parameter(name)[there[name]] for network in (model, whole))
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", fresh_seeds(3))
def test_a_few(seed: int) -> None:
    attack(seed)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("seed", seeds(60))
def test_many(seed: int) -> None:
    attack(seed)

"""What happens only in training mode or in a method of the user's own: outputs, gradients, pruning events."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.weights import Weight
from flipout.schedules import Pruning

from .perceptrons import EXAMPLE, STEPS, numbers, pruned, shapes, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


class Featured(nn.Module):
    """Has another output while it is trained."""

    def __init__(self, extra: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.other = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.extra = extra

    def forward(self, x: Tensor) -> Any:
        h = self.first(x).relu()
        if self.extra == "dropout":
            return self.head(nn.functional.dropout(h, 0.1, self.training))
        if not self.training or self.extra == "none":
            return self.head(h)
        second = {"features": h, "head": None, "loss": h.square().mean()}[self.extra]
        return self.head(h), self.other(h) if second is None else second


@pytest.mark.parametrize("extra", ["features", "head", "loss"])
def test_outputs_of_training_mode_are_compared(extra: str) -> None:
    model = Featured(extra)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.95, steps=STEPS, floor=6, exclude="other.*")
    for number in range(STEPS):
        x, labels = numbers(number)
        scores, _ = model(x)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = shapes(model)
    with pytest.raises(ValueError, match="in training mode"):
        pruner.shrink(EXAMPLE)
    assert shapes(model) == before
    assert model.training


@pytest.mark.parametrize("extra", ["none", "dropout"])
def test_a_network_that_computes_the_same_in_training_mode_is_shrunk(extra: str) -> None:
    parts = model, _, pruner = pruned(Featured(extra), exclude="other.*")
    for parameter in model.other.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    steps(parts, 0, STEPS)
    pruner.shrink(EXAMPLE)
    assert pruner.computed < pruner.prunable


class OwnScore(flipout.GlobalMagnitude):
    def score(self, weight: Weight) -> Tensor:
        values = weight.local.detach()
        return torch.div(values.abs(), values[weight.mask].square().mean().sqrt())


class OwnKeep(flipout.GlobalMagnitude):
    def keep(self, pruning: Pruning) -> int:
        return super().keep(pruning)


class OwnPrune(flipout.GlobalMagnitude):
    def prune(self, pruning: Pruning) -> None:
        super().prune(pruning)


@pytest.mark.parametrize("method", [OwnScore, OwnKeep, OwnPrune])
def test_own_events_are_shrunk_when_they_are_over(method: type[flipout.Pruner]) -> None:
    parts = model, _, pruner = pruned(method=method)
    steps(parts, 0, STEPS // 4)
    assert not pruner.worth_shrinking
    with pytest.raises(ValueError, match=r"Own\w+ .*Wait until pruner\.finished"):
        pruner.shrink(EXAMPLE)
    steps(parts, STEPS // 4, STEPS)
    assert pruner.finished
    assert pruner.worth_shrinking
    pruner.shrink(EXAMPLE)
    assert shapes(model)[0][0] < 32


def test_clipping_sees_the_same_gradients_in_a_shrunk_network() -> None:
    """RigL needs the gradients of pruned weights, until its masks are final."""
    losses: dict[bool, list[float]] = {}
    for shrinks in (False, True):
        model, optimizer, pruner = pruned(method=flipout.RigL, sparsity=0.9)
        losses[shrinks] = []
        for number in range(STEPS):
            x, labels = numbers(number)
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
            losses[shrinks].append(loss.item())
            if shrinks and pruner.finished and not pruner.shrinks:
                pruner.shrink(x)
        assert bool(pruner.shrinks) == shrinks
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)

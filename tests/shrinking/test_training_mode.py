"""What a network computes only while it is trained, and what belongs to the user's own method."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.layers import Layer
from flipout.schedules import Pruning
from flipout.shrinking import network_cut
from flipout.shrinking.tensor_parts import take as real_take

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
    def score(self, layer: Layer) -> Tensor:
        weight = layer.local.detach()
        return torch.div(weight.abs(), weight[layer.mask].square().mean().sqrt())


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
    with pytest.raises(ValueError, match=r"the own \w+\(\) of Own\w+ may use weights that are removed. Wait until"):
        pruner.shrink(EXAMPLE)
    steps(parts, STEPS // 4, STEPS)
    assert pruner.finished
    assert pruner.worth_shrinking
    pruner.shrink(EXAMPLE)
    assert shapes(model)[0][0] < 32


def test_an_attribute_that_cannot_be_copied_is_no_error_in_the_loop() -> None:
    parts = model, _, pruner = pruned()
    model.lock = threading.Lock()  # type: ignore[assignment]
    steps(parts, 0, STEPS)
    assert pruner.worth_shrinking
    with pytest.warns(flipout.NotShrunkWarning, match="cannot be copied"):
        pruner.shrink(EXAMPLE)
    assert not pruner.shrunk


def test_a_cut_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = model, optimizer, pruner = pruned()
    average = copy.deepcopy(model)
    pruner.follow(average)
    steps(parts, 0, STEPS // 2)
    taken, last = 0, 0

    def take(*arguments: Any) -> Tensor:
        nonlocal taken
        taken += 1
        if taken > last:
            raise torch.OutOfMemoryError("no memory")
        return real_take(*arguments)

    monkeypatch.setattr(network_cut, "take", take)
    before, groups = shapes(model), [len(group["params"]) for group in optimizer.param_groups]
    while True:
        taken = 0
        try:
            pruner.shrink(EXAMPLE)
        except torch.OutOfMemoryError:
            assert not pruner.shrunk
            assert (shapes(model), shapes(average)) == (before, before)
            assert [len(group["params"]) for group in optimizer.param_groups] == groups
            steps(parts, 0, 1)
            last += 1
        else:
            break
    assert last > 20  # the trials on copies, the network and the copy that follows
    assert pruner.shrunk


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


def test_a_state_that_cannot_be_shrunk_here_goes_on_whole() -> None:
    parts = _, _, pruner = pruned()
    steps(parts, 0, STEPS // 2)
    pruner.shrink(EXAMPLE)
    with pruner.expanded():
        saved = copy.deepcopy([each.state_dict() for each in parts])
    other_model, other_optimizer, other = pruned()
    test = flipout.AimTest(other_model, other_optimizer)
    other_model.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    with pytest.warns(flipout.NotShrunkWarning, match=r"AimTest.*goes on with the whole network"):
        other.load_state_dict(saved[2])
    assert not other.shrunk
    assert other.computed == other.prunable
    steps((other_model, other_optimizer), STEPS // 2, STEPS)
    test.remove()
    steps(parts, STEPS // 2, STEPS)
    pruner.expand()
    for name, mask in pruner.masks.items():
        assert torch.equal(mask, other.masks[name])


def test_an_example_of_zeros_that_the_network_rejects_does_not_stop_a_resumed_run() -> None:
    class Tokens(nn.Module):
        """Numbers its tokens from 1."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.first, self.head = nn.Embedding(9, 8), nn.Linear(8, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.first(self.embed(x - 1)).relu())  # type: ignore[no-any-return]

    def train(parts: Any, first: int, last: int) -> None:
        for number in range(first, last):
            x = torch.randint(1, 10, (16,), generator=torch.Generator().manual_seed(number))
            nn.functional.cross_entropy(parts[0](x), x % 4).backward()
            parts[1].step()
            parts[1].zero_grad()

    parts = _, _, pruner = pruned(Tokens(), exclude="embed*")
    train(parts, 0, STEPS // 2)
    pruner.shrink(torch.ones(4, dtype=torch.int64))
    with pruner.expanded():
        saved = copy.deepcopy([each.state_dict() for each in parts])
    others = pruned(Tokens(), exclude="embed*")
    others[0].load_state_dict(saved[0])
    others[1].load_state_dict(saved[1])
    others[2].load_state_dict(saved[2])
    assert others[2].shrunk
    assert others[2].computed == pruner.computed
    for each in (parts, others):
        train(each, STEPS // 2, STEPS)
        each[2].expand()
    assert all(torch.equal(mask, others[2].masks[name]) for name, mask in pruner.masks.items())

"""Shrinks and resumed runs that fail half-way: nothing is lost, and the training continues."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.shrinking import network_cut
from flipout.views.cut import take as real_take

from .perceptrons import EXAMPLE, STEPS, pruned, shapes, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


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
    with pytest.warns(flipout.NotShrunkWarning, match="AimTest"):
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

"""Networks that are called with keyword arguments are shrunk for what they are called with, bound by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout

from .perceptrons import STEPS, Parts, layers, numbers, pruned

pytestmark = [pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning")]


class Gated(nn.Module):
    """Two optional tensors of one shape that do different things; one of them by keyword only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers()

    def forward(self, x: Tensor, skip: Tensor | None = None, *, gate: Tensor | None = None) -> Tensor:
        x = x if skip is None else x + skip
        return self.body(x if gate is None else x * gate)  # type: ignore[no-any-return]


def steps(parts: Any, first: int, last: int, **given: Tensor) -> None:
    model, optimizer = parts[:2]
    for number in range(first, last):
        x, labels = numbers(number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, gate=x, **given), labels).backward()
        optimizer.step()


def example() -> dict[str, Tensor]:
    x, _ = numbers(0)
    return {"x": x, "gate": x}


def halfway() -> Parts:
    parts = pruned(Gated())
    steps(parts, 0, STEPS // 2)
    return parts


def test_training_continues_as_without_shrinking() -> None:
    whole, shrunk = halfway(), halfway()
    shrunk[2].shrink(example())
    assert shrunk[2].computed < shrunk[2].prunable
    for parts in (whole, shrunk):
        steps(parts, STEPS // 2, STEPS)
    shrunk[2].expand()
    assert all(torch.equal(mask, shrunk[2].masks[name]) for name, mask in whole[2].masks.items())
    x, _ = numbers(99)
    assert torch.allclose(whole[0](x, gate=x), shrunk[0](x, gate=x), atol=1e-4)


def test_a_shrunk_training_is_resumed() -> None:
    parts = halfway()
    parts[2].shrink(example())
    with parts[2].expanded():
        states = copy.deepcopy([part.state_dict() for part in parts])
    others: Any = pruned(Gated())
    for part, state in zip(others, states, strict=True):
        part.load_state_dict(state)
    assert others[2].computed == parts[2].computed
    for each in (parts, others):
        steps(each, STEPS // 2, STEPS)
    assert all(torch.equal(*pair) for pair in zip(parts[0].parameters(), others[0].parameters(), strict=True))


def test_another_call_than_the_example_is_refused() -> None:
    x, _ = numbers(0)
    parts = halfway()
    parts[2].shrink({"gate": x, "x": x})
    with pytest.raises(RuntimeError, match="gate=2"):
        steps(parts, STEPS // 2, STEPS, skip=x)
    watched = pruned(Gated())
    for number in range(STEPS // 2):
        steps(watched, number, number + 1)
        _ = watched[2].worth_shrinking  # from here on the calls are noted
    with pytest.raises(ValueError, match="gate=2"):
        watched[2].shrink((x, x))
    watched[2].shrink({"x": x, "gate": x})
    assert watched[2].shrunk


@pytest.mark.parametrize("given", [{"gate": torch.zeros(2, 8)}, {"x": torch.zeros(2, 8), "door": torch.zeros(2, 8)}])
def test_an_example_that_the_network_does_not_accept(given: dict[str, Tensor]) -> None:
    parts = halfway()
    with pytest.raises(ValueError, match="example"):
        parts[2].shrink(given)
    assert not parts[2].shrunk


def test_channels_of_a_network_that_is_called_with_keywords() -> None:
    """The recorded call is that of the loop: a keyword is not the next position."""
    parts = model, _, pruner = pruned(Gated(), granularity="channel", sparsity=0.5, floor=0)
    steps(parts, 0, STEPS)
    small = flipout.export.compact(model, example())
    assert sum(each.numel() for each in small.parameters()) < 0.6 * sum(each.numel() for each in model.parameters())
    assert pruner.sparsity >= 0.5

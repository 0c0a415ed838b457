"""What is done within `with pruner.expanded():` holds after it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from .perceptrons import EXAMPLE, STEPS, Parts, layers, numbers, pruned, shapes, steps

pytestmark = pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning")


def states(parts: Sequence[Any]) -> list[Any]:
    with parts[2].expanded():
        return copy.deepcopy([part.state_dict() for part in parts])


def load(parts: Sequence[Any], saved: list[Any]) -> None:
    for part, state in zip(parts, saved, strict=True):
        part.load_state_dict(state)


def shrunk_at(step: int) -> Parts:
    parts = pruned()
    steps(parts, 0, step)
    parts[2].shrink(EXAMPLE)
    assert parts[2].shrunk
    return parts


def test_a_state_of_before_the_shrink_is_loaded_whole() -> None:
    parts = model, _, pruner = pruned()
    steps(parts, 0, 8)
    saved, x = states(parts), numbers(0)[0]
    outputs = model(x).detach()
    steps(parts, 8, 30)
    pruner.shrink(EXAMPLE)
    with pruner.expanded():
        load(parts, saved)
    assert not pruner.shrunk
    assert not pruner.shrinks
    assert torch.equal(model(x), outputs)
    steps(parts, 8, STEPS)
    straight = pruned()
    steps(straight, 0, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), straight[0].parameters(), strict=True))


def test_a_state_of_a_shrunk_network_is_loaded_shrunk() -> None:
    parts = model, _, pruner = shrunk_at(12)
    small, saved = shapes(model), states(parts)
    steps(parts, 12, 18)
    pruner.shrink(EXAMPLE)
    assert shapes(model) != small
    with pruner.expanded():
        load(parts, saved)
        assert shapes(model) == shapes(layers())
    assert shapes(model) == small
    steps(parts, 12, STEPS)
    straight = shrunk_at(12)
    steps(straight, 12, STEPS)
    pruner.expand()
    straight[2].expand()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), straight[0].parameters(), strict=True))


@pytest.mark.parametrize("act", ["remove", "expand"])
def test_a_network_that_is_made_whole_inside_stays_whole(act: str) -> None:
    model, optimizer, pruner = shrunk_at(STEPS)
    with pruner.expanded(), pruner.expanded():
        getattr(pruner, act)()
    assert not pruner.shrunk
    assert shapes(model) == shapes(layers())
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_a_shrink_inside_takes_place_at_the_end() -> None:
    parts = model, _, pruner = shrunk_at(12)
    before = pruner.computed
    steps(parts, 12, 18)
    with pruner.expanded():
        pruner.shrink(EXAMPLE)
        assert shapes(model) == shapes(layers())
    assert pruner.computed < before
    assert [shrink.weights for shrink in pruner.shrinks] == [before, pruner.computed]


def test_a_copy_that_is_made_inside_is_whole_and_can_be_shrunk() -> None:
    parts = shrunk_at(12)
    with parts[2].expanded():
        other = copy.deepcopy(parts)
    assert parts[2].shrunk
    assert not other[2].shrunk
    steps(other, 12, 18)
    other[2].shrink(EXAMPLE)
    assert other[2].shrunk
    with other[2].expanded():
        assert shapes(other[0]) == shapes(layers())
    assert other[2].shrunk


def test_an_error_inside_leaves_the_network_shrunk() -> None:
    model, _, pruner = shrunk_at(12)
    small = shapes(model)
    with pytest.raises(KeyError), pruner.expanded(), pruner.expanded():
        raise KeyError
    assert shapes(model) == small


def test_the_optimizer_is_saved_and_loaded_inside_only() -> None:
    parts = _, optimizer, pruner = shrunk_at(12)
    saved = states(parts)
    copied = copy.deepcopy(parts)
    for each in (optimizer, copied[1]):
        with pytest.raises(RuntimeError, match=r"Save .*pruner\.expanded"):
            each.state_dict()
        with pytest.raises(RuntimeError, match=r"Load .*pruner\.expanded"):
            each.load_state_dict(saved[1])
    with pruner.expanded():
        optimizer.load_state_dict(optimizer.state_dict())
    pruner.remove()
    optimizer.load_state_dict(saved[1])


def test_the_coverage_is_that_of_the_whole_network() -> None:
    parts = pruned()
    before = parts[2].coverage()
    steps(parts, 0, STEPS)
    parts[2].shrink(EXAMPLE)
    assert parts[2].coverage() == before
    assert parts[2].shrunk

"""What cannot be combined: one table, and the needs that a method declares or that are found in what it overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import pytest
import torch
from torch import Tensor

import flipout
from flipout.problems import ENDS_WITH_THE_LAST_PRUNING, INCOMPATIBLE, Capability, Need, incompatibility
from flipout.schedules import Pruning
from tests.helpers import mlp, sgd, train

EXAMPLE = torch.zeros(2, 12)


@pytest.mark.parametrize("need", get_args(Need))
@pytest.mark.parametrize("capability", get_args(Capability))
def test_the_table(need: Need, capability: Capability) -> None:
    """A refusal names the method, the option, the reason and the way out."""
    problem = incompatibility({need: "for a reason"}, capability, "Mine", "option=1")
    finished = incompatibility({need: "for a reason"}, capability, "Mine", "option=1", finished=True)
    if (need, capability) not in INCOMPATIBLE:
        assert problem is None
        assert finished is None
        return
    assert problem is not None
    assert all(text in problem for text in ("Mine", "option=1", "for a reason", INCOMPATIBLE[need, capability]))
    assert finished == (None if need in ENDS_WITH_THE_LAST_PRUNING else problem)


def test_every_need_is_incompatible_with_something() -> None:
    assert {need for need, _ in INCOMPATIBLE} == set(get_args(Need))
    assert {capability for _, capability in INCOMPATIBLE} == set(get_args(Capability))


class Plain(flipout.GlobalMagnitude):
    """A method of one's own that overrides nothing."""


class OwnSelect(flipout.GlobalMagnitude):
    """Chooses itself."""

    def select(self, keep: int) -> flipout.Selection:
        return super().select(keep)


class OwnPrune(flipout.GlobalMagnitude):
    """Carries out events itself."""

    def prune(self, pruning: Pruning) -> None:
        super().prune(pruning)


class OwnState(flipout.GlobalMagnitude):
    """Keeps something of its own."""

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        return {"mine": {"number": torch.zeros(())}}


class Declared(flipout.GlobalMagnitude):
    """Says what it needs."""

    requires: ClassVar[Mapping[Need, str]] = {
        "own choice": "it likes prime numbers",
        "whole network": "it counts channels",
    }


def build(cls: type[flipout.GlobalMagnitude], **options: Any) -> flipout.Pruner:
    model = mlp()
    return cls(model, sgd(model), **{"sparsity": 0.9, "steps": 20, **options})


def shrink(cls: type[flipout.GlobalMagnitude], steps: int) -> flipout.Pruner:
    pruner = build(cls, floor=2)
    train(pruner.model, pruner.optimizer, steps)
    pruner.shrink(EXAMPLE)
    return pruner


@pytest.mark.parametrize(
    ("cls", "needs"),
    [
        (Plain, set()),
        (OwnSelect, {"own choice"}),
        (OwnPrune, {"own prune"}),
        (OwnState, {"whole network"}),
        (Declared, {"own choice", "whole network"}),
    ],
)
def test_needs(cls: type[flipout.GlobalMagnitude], needs: set[str]) -> None:
    assert build(cls).needs().keys() == needs


UNITS = {"granularity": "channel", "sparsity": 0.5}
CHANCES = {"second_chances": True}


@pytest.mark.parametrize(
    ("cls", "options", "refused"),
    [
        (Plain, UNITS, False),
        (Plain, CHANCES, False),
        (OwnSelect, UNITS, True),
        (OwnSelect, CHANCES, True),
        (OwnPrune, UNITS, False),
        (OwnPrune, CHANCES, True),
        (OwnState, UNITS, False),
        (OwnState, CHANCES, False),
        (Declared, UNITS, True),
        (Declared, CHANCES, True),
    ],
)
def test_options_that_a_method_is_incompatible_with(
    cls: type[flipout.GlobalMagnitude], options: dict[str, Any], refused: bool
) -> None:
    if not refused:
        build(cls, **options)
        return
    with pytest.raises(ValueError, match=rf"{cls.__name__}.*{next(iter(options))}="):
        build(cls, **options)


@pytest.mark.parametrize("granularity", ["channel", "2:4"])
def test_dead_first_where_it_has_no_effect(granularity: str) -> None:
    with pytest.raises(ValueError, match=rf"granularity='{granularity}'.*dead_first"):
        build(Plain, sparsity=0.5, granularity=granularity, dead_first=True)


def test_the_reason_is_the_declared_one_and_nothing_stays_attached() -> None:
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="it likes prime numbers"):
        Declared(model, optimizer, sparsity=0.5, steps=20, granularity="channel")
    Plain(model, optimizer, sparsity=0.5, steps=20)


@pytest.mark.parametrize(
    ("cls", "early", "late"),
    [(Plain, True, True), (OwnSelect, False, True), (OwnPrune, False, True), (OwnState, False, False)],
)
def test_shrinking(cls: type[flipout.GlobalMagnitude], early: bool, late: bool) -> None:
    """A method that chooses or prunes in its own way waits for the last pruning; one with a state, until the end."""
    for steps, possible in ((8, early), (12, late)):
        if possible:
            assert shrink(cls, steps).finished == (steps == 12)
        else:
            with pytest.raises(ValueError, match=cls.__name__):
                shrink(cls, steps)


def test_a_declared_need_is_the_reason_that_shrinking_gives() -> None:
    with pytest.raises(ValueError, match=r"Declared.*it counts channels"):
        shrink(Declared, 12)


@pytest.mark.parametrize("method", ["rigl", "granet", "deep-r"])
def test_methods_that_choose_single_weights(method: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"granularity='channel'"):
        flipout.METHODS[method](model, sgd(model), sparsity=0.5, steps=20, granularity="channel")

"""Settings of second chances, and methods and schedules that they do not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flipout
from flipout.revival import as_revival
from tests.helpers import batches, cross_entropy, mlp, sgd, train
from tests.revival.second_chances import STEPS, magnitude


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": 0}, "until"),
        ({"until": 1.5}, "until"),
        ({"rate": -1}, "rate"),
        ({"rate": 2}, "rate"),
        ({"trust": 0}, "trust"),
        ({"trust": math.nan}, "trust"),
        ({"events": 0}, "events"),
        ({"events": 1.5}, "events"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flipout.Revival(**options)


def test_ways_to_ask_for_second_chances() -> None:
    assert as_revival(True) == flipout.Revival()
    assert as_revival(False) is None
    assert as_revival(None) is None
    with pytest.raises(TypeError, match="revival"):
        as_revival(0.7)  # type: ignore[arg-type]


def test_schedules_that_leave_no_time_for_second_chances() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="first pruning is at step 54"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0.9))
    with pytest.raises(ValueError, match="before the first step"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0))


@pytest.mark.parametrize("method", ["deep-r", "lottery", "snip"])
def test_methods_that_decide_about_pruned_weights_themselves(method: str) -> None:
    model = mlp()
    options: dict[str, Any] = {"batches": list(batches(1)), "loss_fn": cross_entropy} if method == "snip" else {}
    with pytest.raises(ValueError, match="does not take revival="):
        flipout.METHODS[method](model, sgd(model), sparsity=0.9, steps=STEPS, revival=True, **options)


def test_a_long_time_at_an_extreme_sparsity_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    def attach(sparsity: float, end: float, until: float) -> None:
        model = mlp()
        schedule, revival = flipout.Geometric(sparsity, 1000, window=(0.05, end)), flipout.Revival(until=until)
        pruner = flipout.GlobalMagnitude(
            model, sgd(model), sparsity=sparsity, steps=1000, schedule=schedule, revival=revival
        )
        pruner.remove()

    def warned() -> list[str]:
        found = [str(each.message) for each in recwarn if each.category is flipout.LongRevivalWarning]
        recwarn.clear()
        return found

    attach(0.99, 0.5, 0.7)  # the default
    attach(0.9, 0.2, 0.7)
    attach(0.99, 0.2, 0.3)
    assert warned() == []
    attach(0.99, 0.2, 0.7)
    (message,) = warned()
    assert "the last pruning is at step 200, and weights can come back until step 700" in message
    assert "freeze the masks at 0.33 of training" in message


def test_prunings_after_the_freeze_are_for_good() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.9, STEPS, prunings=20, window=(0.05, 0.9))
    pruner = magnitude(model, optimizer, schedule=schedule, revival=flipout.Revival(until=0.4))
    train(model, optimizer, STEPS)
    later = [event for event in pruner.events if event.step > 24]
    assert len(later) > 5
    assert not any(event.grown for event in later)
    assert pruner.nonzero == 35

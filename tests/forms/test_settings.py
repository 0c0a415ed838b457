"""Settings of second chances, and methods and schedules that they do not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flipout
from flipout.forms import as_second_chances
from tests.forms.trainings import STEPS, magnitude
from tests.helpers import batches, cross_entropy, mlp, sgd, train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": 0}, "until"),
        ({"until": 1.5}, "until"),
        ({"rate": -1}, "rate"),
        ({"rate": 2}, "rate"),
        ({"trust": 0}, "trust"),
        ({"trust": math.nan}, "trust"),
        ({"calm": 0}, "calm"),
        ({"calm": math.nan}, "calm"),
        ({"events": 0}, "events"),
        ({"events": 1.5}, "events"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flipout.SecondChances(**options)


def test_ways_to_ask_for_second_chances() -> None:
    assert as_second_chances(True) == flipout.SecondChances()
    assert as_second_chances(False) is None
    assert as_second_chances(None) is None
    with pytest.raises(TypeError, match="second_chances"):
        as_second_chances(0.7)  # type: ignore[arg-type]


def test_schedules_that_leave_no_time_for_second_chances() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="second_chances"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0.9))
    with pytest.raises(ValueError, match="second_chances"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0))


@pytest.mark.parametrize("method", ["deep-r", "lottery", "snip"])
def test_methods_that_decide_about_pruned_weights_themselves(method: str) -> None:
    model = mlp()
    options: dict[str, Any] = {"batches": list(batches(1)), "loss_fn": cross_entropy} if method == "snip" else {}
    with pytest.raises(ValueError, match="second_chances"):
        flipout.METHODS[method](model, sgd(model), sparsity=0.9, steps=STEPS, second_chances=True, **options)


@pytest.mark.parametrize(
    ("end", "until", "frozen"),
    [(0.5, 0.7, 700), (0.2, 0.7, 300), (0.2, 0.25, 250), (0.35, 1.0, 525), (0.8, 1.0, 1000), (0.9, 0.4, 400)],
)
def test_masks_are_frozen_soon_after_the_last_pruning(end: float, until: float, frozen: int) -> None:
    """For long at an extreme sparsity, noise would choose the weights."""
    model, chances = mlp(), flipout.SecondChances(until=until)
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.99, steps=1000, end=end, second_chances=chances)
    chosen = [pruning.step for pruning in pruner.plan()]
    assert frozen in chosen
    assert max(chosen) == max(frozen, round(end * 1000))


def test_prunings_after_the_freeze_are_permanent() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.9, STEPS, prunings=20, window=(0.05, 0.9))
    pruner = magnitude(model, optimizer, schedule=schedule, second_chances=flipout.SecondChances(until=0.4))
    train(model, optimizer, STEPS)
    later = [event for event in pruner.events if event.step > 24]
    assert len(later) > 5
    assert not any(event.grown for event in later)
    assert pruner.nonzero == 35

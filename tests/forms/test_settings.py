"""Settings of second chances, and methods and schedules that they do not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flipout
from flipout.forms.hidden import as_second_chances
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


def test_a_long_time_at_an_extreme_sparsity_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    def attach(sparsity: float, end: float, until: float) -> None:
        model = mlp()
        schedule, chances = flipout.Geometric(sparsity, 1000, window=(0.05, end)), flipout.SecondChances(until=until)
        pruner = flipout.GlobalMagnitude(
            model, sgd(model), sparsity=sparsity, steps=1000, schedule=schedule, second_chances=chances
        )
        pruner.remove()

    def warned() -> list[str]:
        found = [str(each.message) for each in recwarn if each.category is flipout.LongSecondChancesWarning]
        recwarn.clear()
        return found

    attach(0.99, 0.5, 0.7)  # the default
    attach(0.9, 0.2, 0.7)
    attach(0.99, 0.2, 0.3)
    assert warned() == []
    attach(0.99, 0.2, 0.7)
    (message,) = warned()
    assert all(number in message for number in ("200", "700", "0.33"))  # the steps, and the share to freeze them at


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

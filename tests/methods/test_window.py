"""`start=` and `end=`: when a gradual method prunes, as shares of training."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import flipout
from tests.helpers import fresh, mlp, run, sgd

LATENT = {"variational-dropout", "l0", "dynamic-sparse-training"}
GRADUAL = [name for name, method in flipout.METHODS.items() if issubclass(method.cls, flipout.Gradual)]


def test_which_methods_are_gradual() -> None:
    others = {"dense", "keep-zeros", "snip", "deep-r", "hoyer-square", "lottery", "rigl"} | LATENT
    assert set(GRADUAL) == set(flipout.METHODS) - others


@pytest.mark.parametrize("method", GRADUAL)
def test_pruning_starts_and_ends_where_it_is_said(method: str) -> None:
    model, optimizer, pruner = fresh(method, start=0.25, end=0.5)
    assert pruner.schedule.window == (0.25, 0.5)
    counts = []
    for step in range(40):
        run(model, optimizer, pruner, step + 1, skip=step)
        counts.append(pruner.nonzero)
    assert set(counts[:10]) == {352}
    assert 352 > counts[10] > counts[18] > 35
    assert set(counts[19:]) == {35}


@pytest.mark.parametrize("method", GRADUAL)
@pytest.mark.parametrize(
    ("options", "window"),
    [({}, (0.05, 0.5)), ({"start": 0.3}, (0.3, 0.5)), ({"end": 0.2}, (0.05, 0.2)), ({"start": 0}, (0, 0.5))],
)
def test_what_is_left_out_is_as_usual(method: str, options: dict[str, float], window: tuple[float, float]) -> None:
    assert fresh(method, **options)[2].schedule.window == window


def test_the_example_of_the_readme() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=100, end=0.2)
    run(model, optimizer, pruner, 20)
    assert pruner.finished
    assert pruner.nonzero == 35


@pytest.mark.parametrize("method", GRADUAL)
@pytest.mark.parametrize("window", [{"start": 0.1}, {"end": 0.4}, {"start": 0.1, "end": 0.4}])
@pytest.mark.parametrize("schedule", ["paper", flipout.Cubic(0.9, 40), partial(flipout.Geometric, prunings=3)])
def test_a_schedule_says_it_already(method: str, window: dict[str, float], schedule: Any) -> None:
    with pytest.raises(ValueError, match=r"start=.*end=.*schedule="):
        fresh(method, schedule=schedule, **window)


def test_the_kind_of_schedule_can_be_given_too() -> None:
    assert fresh("flipout", schedule=flipout.Cubic, start=0.1)[2].schedule == flipout.Cubic(0.9, 40, window=(0.1, 0.5))


@pytest.mark.parametrize("options", [{"start": 0.7}, {"start": -0.1}, {"end": 1.5}, {"end": 0.01}])
def test_a_window_that_is_none(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"start and end"):
        fresh("magnitude", **options)


@pytest.mark.parametrize("method", ["snip", "deep-r", "rigl", "dense"])
def test_other_methods_have_no_window(method: str) -> None:
    with pytest.raises(TypeError, match="end"):
        fresh(method, end=0.5)


def test_prunings_that_end_early_freeze_the_masks_early() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=100, end=0.2)
    run(model, optimizer, pruner, 29)
    assert pruner.nonzero == 35
    assert not pruner.permanent
    run(model, optimizer, pruner, 30, skip=29)
    assert pruner.permanent
    assert pruner.finished

"""Options of a wrong value or a wrong type: an error that names the option."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import flipout
from tests.helpers import mlp, sgd


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": "2"}, "p is '2'"),
        ({"p": None}, "p is None"),
        ({"floor": "3"}, "floor is '3'"),
        ({"floor": None}, "floor is None"),
        ({"floor": True}, "floor is True"),
        ({"floor": [1]}, r"floor is \[1\]"),
        ({"include": 3}, "include is 3"),
        ({"include": ["0", 3]}, r"include is \['0', 3\]"),
        ({"exclude": 0}, "exclude is 0"),
        ({"exclude": [nn.Linear]}, "exclude is "),
        ({"include": b"0"}, "include is b'0'"),
    ],
    ids=str,
)
def test_options_of_the_wrong_type(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises(TypeError, match=message):
        flipout.PaperFlipOut(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})


@pytest.mark.parametrize("window", [0.5, None, (0.1,), (0, 0.1, 0.2), ("0", "1"), "ab", {0.1, 0.5}, (None, 1)], ids=str)
def test_windows_of_the_wrong_type(window: Any) -> None:
    with pytest.raises(TypeError, match="window is "):
        flipout.Geometric(0.9, 100, window=window)


def test_a_window_may_be_a_list_and_patterns_a_generator() -> None:
    assert flipout.Geometric(0.9, 100, window=[0.1, 0.4]).moments()[-1] == 40  # type: ignore[arg-type]
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, include=(name for name in ["0.bias", "2"]))
    assert list(pruner.masks) == ["0.bias", "2.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, "sparsity is 1.0"),
        ({"sparsity": -0.5}, "sparsity is -0.5"),
        ({"sparsity": 99}, "sparsity is 99"),
        ({"steps": 1}, "steps"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 3, "schedule": "paper"}, "3 steps"),
        ({"schedule": "papers"}, "schedule is 'papers'"),
        ({"schedule": flipout.Cubic(0.8, 40)}, r"schedule.*sparsity=0\.8.*sparsity=0\.9"),
        ({"p": -1}, "p is -1"),
        ({"p": float("inf")}, "p is inf"),
        ({"noise": -1.0}, "noise scale is -1.0"),
        ({"scope": "local"}, "scope is 'local'"),
        ({"floor": -1}, "floor is -1"),
        ({"floor": 1.5}, "floor is 1.5"),
        ({"floor": 20}, "floor=20.*60.*35"),
        ({"floor": 0.2}, r"floor=0\.2.*72"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        flipout.PaperFlipOut(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "weight"}, "noise is 'weight'"),
        ({"schedule": 0.9}, "schedule is 0.9"),
    ],
)
def test_things_of_the_wrong_kind(options: dict[str, Any], message: str) -> None:
    model = mlp()
    given = {"criterion": flipout.criteria.magnitude, "schedule": flipout.Geometric(0.5, 10), **options}
    with pytest.raises(TypeError, match=message):
        flipout.Pruner(model, sgd(model), **given)


@pytest.mark.parametrize("options", [{"steps": None}, {"steps": float("inf")}, {"sparsity": "0.9"}, {"steps": 10.5}])
def test_numbers_that_are_none(options: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        flipout.PaperFlipOut(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})

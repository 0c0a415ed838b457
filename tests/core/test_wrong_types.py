"""Arguments of the wrong type, and models that cannot be pruned: a sentence, not a traceback of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

import flipout
from tests.helpers import mlp, sgd


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": "2"}, "p is '2'; give the power of the magnitude as a number"),
        ({"p": None}, "p is None"),
        ({"floor": "3"}, "floor is '3'; give a whole number of weights"),
        ({"floor": None}, "floor is None"),
        ({"floor": True}, "floor is True"),
        ({"floor": [1]}, r"floor is \[1\]"),
        ({"include": 3}, "include is 3; give a name pattern"),
        ({"include": ["0", 3]}, r"include is \['0', 3\]"),
        ({"exclude": 0}, "exclude is 0; give a name pattern"),
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
    with pytest.raises(TypeError, match=r"window is .*; give start and end as shares of training"):
        flipout.Geometric(0.9, 100, window=window)


def test_a_window_may_be_a_list_and_patterns_a_generator() -> None:
    assert flipout.Geometric(0.9, 100, window=[0.1, 0.4]).moments()[-1] == 40  # type: ignore[arg-type]
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, include=(name for name in ["0.bias", "2"]))
    assert list(pruner.masks) == ["0.bias", "2.weight"]


def test_attaching_under_inference_mode() -> None:
    model = mlp()
    optimizer = sgd(model)
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match=r"cannot be attached under torch\.inference_mode\(\)"):
            flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)
        born_there = mlp()
    with pytest.raises(ValueError, match=r"0\.weight, .* was created under torch\.inference_mode\(\)"):
        flipout.PaperFlipOut(born_there, sgd(born_there), sparsity=0.5, steps=10)


def test_a_dtensor_of_an_unknown_layout_is_refused_when_attaching(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}")
    try:
        model = mlp()
        mesh = DeviceMesh("cpu", [0])
        linear = model.get_submodule("2")
        local = linear.get_parameter("weight").detach()
        linear.weight = nn.Parameter(DTensor.from_local(local, mesh, [Partial()]))
        for method in ("flipout", "keep-zeros"):
            with pytest.raises(ValueError, match=r"^2\.weight is a DTensor with the layout .*Partial.*not supported"):
                flipout.METHODS[method](model, sgd(model), sparsity=0.5, steps=10)
        assert flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, exclude="2").prunable == 224
    finally:
        torch.distributed.destroy_process_group()

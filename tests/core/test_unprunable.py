"""Models that cannot be pruned: an error that names the weight, when the pruner is attached."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

import flipout
from tests.helpers import mlp, sgd


def test_attaching_under_inference_mode() -> None:
    model = mlp()
    optimizer = sgd(model)
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="inference_mode"):
            flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)
        born_there = mlp()
    with pytest.raises(ValueError, match=r"0\.weight, .*inference_mode"):
        flipout.PaperFlipOut(born_there, sgd(born_there), sparsity=0.5, steps=10)


def test_lazy_modules_that_were_not_called() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LazyLinear(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for include in (None, "0"):
        with pytest.raises(ValueError, match=r"1\.weight, 1\.bias has no shape yet: call the model once"):
            flipout.FlipOut(model, optimizer, sparsity=0.5, steps=10, include=include)
    with pytest.raises(ValueError, match=r"1\.weight, 1\.bias has no shape yet"):
        flipout.prune(model, [torch.ones(2, 4)], sparsity=0.5)
    model(torch.ones(2, 4))
    assert flipout.FlipOut(model, optimizer, sparsity=0.5, steps=10).prunable == 56


def test_weights_on_the_device_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"0\.weight, 1\.weight is on the device meta, without values"):
        flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::flipout.CoverageWarning")
def test_scripted_modules_are_left_out() -> None:
    part = torch.jit.script(nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(4, 8), part, nn.Linear(8, 2))
    pruner = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10)
    assert [weight.name for weight in pruner.weights] == ["0.weight", "2.weight"]
    pruner.remove()
    assert flipout.prune(model, [torch.ones(2, 4)], sparsity=0.5).prunable == 48
    with pytest.raises(ValueError, match="there is nothing to prune in RecursiveScriptModule"):
        flipout.FlipOut(part, sgd(part), sparsity=0.5, steps=10)


def test_a_dtensor_of_an_unknown_layout_is_refused_when_attaching(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}")
    try:
        model = mlp()
        mesh = DeviceMesh("cpu", [0])
        linear = model.get_submodule("2")
        local = linear.get_parameter("weight").detach()
        linear.weight = nn.Parameter(DTensor.from_local(local, mesh, [Partial()]))
        for method in ("flipout", "keep-zeros"):
            with pytest.raises(ValueError, match=r"^2\.weight .*DTensor.*Partial"):
                flipout.METHODS[method](model, sgd(model), sparsity=0.5, steps=10)
        assert flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, exclude="2").prunable == 224
    finally:
        torch.distributed.destroy_process_group()

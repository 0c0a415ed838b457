"""Every method prunes larger units exactly, or says why it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import flipout
from tests.helpers import make, mlp, sgd, train

ONE_BY_ONE = {"rigl", "granet", "deep-r"}
WITHOUT = {"dense", "keep-zeros"}


@pytest.mark.parametrize("method", [name for name in flipout.METHODS if name not in WITHOUT])
@pytest.mark.parametrize(("granularity", "sparsity"), [((4, 4), 0.8), ("2:4", 0.5)])
def test_the_last_count_of_the_plan_is_met(method: str, granularity: Any, sparsity: float) -> None:
    model = mlp()
    optimizer = sgd(model)
    options: dict[str, Any] = {"granularity": granularity, "sparsity": sparsity}
    if method in ONE_BY_ONE:
        with pytest.raises(ValueError, match="granularity="):
            make(method, model, optimizer, **options)
        return
    pruner = make(method, model, optimizer, **options)
    train(model, optimizer, pruner.schedule.steps)
    assert pruner.finished
    assert pruner.nonzero == pruner.plan()[-1].nonzero
    assert pruner.nonzero <= round(352 * (1 - sparsity))
    pruner.check()


@pytest.mark.parametrize("granularity", ["kernel", "4x6", "2:4", "channel"])
def test_other_layouts_and_types_of_weights(granularity: str) -> None:
    torch.manual_seed(0)
    convolutions = nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2), nn.ReLU(), nn.Conv2d(4, 8, (1, 3))
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 7 * 5, 4)).to(torch.bfloat16)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = sgd(model, lr=0.01)
    sparsity = 0.5 if granularity == "2:4" else 0.6
    pruner = flipout.FlipOut(model, optimizer, sparsity=sparsity, steps=12, granularity=granularity, compile=False)
    for _ in range(12):
        optimizer.zero_grad()
        x = torch.randn(2, 4, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        model(x).float().square().mean().backward()
        optimizer.step()
    asked = pruner.plan()[-1].nonzero
    assert asked is not None
    assert pruner.nonzero == asked if granularity != "channel" else 0.9 * asked < pruner.nonzero <= asked
    pruner.check()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_weight_without_elements_is_no_problem() -> None:
    model = nn.ModuleDict({"some": nn.Linear(8, 8), "empty": nn.Linear(0, 8)})
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=8, granularity=(4, 4), scope="layer")
    for _ in range(8):
        optimizer.zero_grad()
        model["some"](torch.randn(2, 8)).sum().backward()
        optimizer.step()
    assert pruner.nonzero == 32

"""The number of operations in an ordinary step does not grow with the number of small layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import flipout
from tests.devices.fake_device import FactoriesOnDevice, device

CHANCES = flipout.SecondChances(events=4)
METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    "magnitude": flipout.GlobalMagnitude,
    "flipout": partial(flipout.FlipOut, second_chances=CHANCES),
    "flipout with noise": partial(flipout.FlipOut, second_chances=CHANCES, noise=1.0),
    "flipout-paper": flipout.PaperFlipOut,
}


@pytest.fixture(autouse=True)
def fake_device() -> Iterator[None]:
    with FactoriesOnDevice():
        yield


class Counting(TorchDispatchMode):
    """Counts the operations that compute something. Views are work of the host alone."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.overloadpacket is not torch.ops.aten.detach:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Still(torch.optim.SGD):
    """An optimizer that changes nothing, so that only the pruner's operations are counted."""

    def step(self, closure: Any = None) -> Any:
        return None


def operations(method: str, layers: int) -> list[Counter[str]]:
    """Those of ordinary steps: not the first one, no event, and not the step after one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers))).to(device())
    optimizer = Still(model.parameters(), lr=0.1)
    schedule = flipout.OneShot(0.9, 40, at=0.05)  # at step 2; with second chances also at 9
    pruner = METHODS[method](model, optimizer, sparsity=0.9, steps=40, schedule=schedule, compile=False)
    found, rest = [], 0
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        events = len(pruner.events)
        with Counting() as counting:
            optimizer.step()
        rest = rest + 1 if len(pruner.events) == events else 0
        if pruner.events and rest > 1:
            found.append(counting.counts)
    assert found
    return found


@pytest.mark.parametrize("method", METHODS)
def test_small_layers_share_their_operations(method: str) -> None:
    few, many = operations(method, 10), operations(method, 40)
    assert few == many
    assert few[0].total() > 0

"""`dead_first` on a device that is not the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flipout.channels.live_paths import LivePaths
from tests.devices.fake_device import FactoriesOnDevice, FakeTensorOnDevice, syncs
from tests.devices.test_devices import Run, assert_same, deep_mlp, to_device
from tests.helpers import mlp


@pytest.fixture(autouse=True)
def fake_device() -> Iterator[None]:
    with FactoriesOnDevice():
        yield


@pytest.mark.parametrize("method", ["flipout", "random"])
def test_it_does_on_a_device_what_it_does_on_the_cpu(method: str) -> None:
    there, here = (Run(method, mlp(), move, dead_first=True).train(20) for move in (to_device, lambda x: x))
    assert all(type(mask) is FakeTensorOnDevice for mask in there.pruner.masks.values())
    assert there.pruner.nonzero == 35
    assert_same(there, here)
    assert all(waits == [] for waits in there.ordinary)


def test_finding_dead_weights_waits_once_however_many_layers_there_are() -> None:
    for layers in (2, 8):
        model: nn.Module = deep_mlp(layers)
        paths = LivePaths(model, (torch.randn(2, 12),))
        masks = {name: torch.rand(weight.shape) < 0.2 for name, weight in model.named_parameters() if weight.ndim > 1}
        there = {name: to_device(mask) for name, mask in masks.items()}
        with syncs.counted() as waits:
            found = paths.dead(there)
        assert len(waits) == 1
        expected = paths.dead(masks)
        assert found.keys() == expected.keys()
        assert all(torch.equal(mark.cpu(), expected[name]) for name, mark in found.items())

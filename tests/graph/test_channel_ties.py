"""Channels that belong together: through sums, concatenations, groups and flattening."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipout.graph.channel_ties import FIXED, ChannelTies, channel_ties


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = x + self.second(self.inner(x).relu())
        return self.head(torch.flatten(nn.functional.max_pool2d(x, 2), 1))  # type: ignore[no-any-return]


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.third(torch.cat([x, self.second(x)], 1)).mean((2, 3))  # type: ignore[no-any-return]


def ties(model: nn.Module, *shape: int) -> ChannelTies:
    return channel_ties(model, (torch.randn(2, *shape),))


def test_a_residual_sum_ties_its_terms() -> None:
    layers = ties(Residual(), 3, 4, 4).layers
    assert layers["first.weight"].inputs == [FIXED] * 3
    stream = layers["first.weight"].outputs
    assert len(set(stream)) == 4
    assert FIXED not in stream
    assert layers["second.weight"].outputs == stream == layers["inner.weight"].inputs
    inner = layers["inner.weight"].outputs
    assert layers["second.weight"].inputs == inner
    assert not set(inner) & set(stream)
    assert layers["head.weight"].inputs == [channel for channel in stream for _ in range(4)]
    assert layers["head.weight"].outputs == [FIXED] * 5


def test_a_concatenation_appends() -> None:
    layers = ties(Dense(), 3, 4, 4).layers
    assert layers["third.weight"].inputs == [*layers["first.weight"].outputs, *layers["second.weight"].outputs]


def test_groups_are_tied_to_their_inputs() -> None:
    depthwise = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=4)
    layers = ties(nn.Sequential(*depthwise, nn.Conv2d(4, 6, 1, groups=2), nn.Flatten()), 3, 4, 4).layers
    assert layers["1.weight"].inputs is None
    assert layers["1.weight"].outputs == layers["0.weight"].outputs == [FIXED] * 4  # the last layer is the output
    deeper = ties(nn.Sequential(*depthwise, nn.ReLU(), nn.Conv2d(4, 2, 1)), 3, 4, 4).layers
    assert len(set(deeper["0.weight"].outputs)) == 4
    assert deeper["1.weight"].outputs == deeper["0.weight"].outputs == deeper["3.weight"].inputs


@pytest.mark.parametrize("mixing", [nn.LayerNorm(4), nn.Softmax(1), nn.GroupNorm(2, 4)])
def test_what_may_mix_channels_fixes_them(mixing: Any) -> None:
    found = ties(nn.Sequential(nn.Linear(3, 4), mixing, nn.Linear(4, 2)), 3)
    assert found.layers["0.weight"].outputs == [FIXED] * 4
    assert found.layers["2.weight"].inputs == [FIXED] * 4
    assert "may mix channels" in found.notes[0]


def test_a_module_that_is_called_twice_is_fixed() -> None:
    shared = nn.Linear(4, 4)
    found = ties(nn.Sequential(nn.Linear(3, 4), shared, nn.ReLU(), shared, nn.Linear(4, 2)), 3)
    assert found.layers["0.weight"].outputs == [FIXED] * 4
    assert "1.weight" not in found.layers

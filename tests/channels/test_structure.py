"""Recordings are kept for networks of the same structure."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flipout.channels.record import record


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor, self.then = nn.Linear(4, 3), 2.0, torch.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.layer(x) * self.factor)


X = torch.randn(2, 4)


def test_other_weights_and_inputs_have_the_same_recording() -> None:
    model = Scaled()
    first = record(model, (X,))
    other = copy.deepcopy(model)
    nn.init.zeros_(other.layer.weight)
    assert record(other, (torch.randn(2, 4),)) is first
    assert record(other.train(), (X,), functional=True) is first  # nothing is changed in place


def change_factor(model: Scaled) -> None:
    model.factor = 3.0


def change_function(model: Scaled) -> None:
    model.then = torch.tanh


def tie(model: Scaled) -> None:
    model.other = model.layer


def hook(model: Scaled) -> None:
    model.layer.register_forward_hook(lambda module, inputs, output: output + 1)


@pytest.mark.parametrize("change", [change_factor, change_function, tie, hook])
def test_another_structure_has_another_recording(change: Callable[[Scaled], None]) -> None:
    model = Scaled()
    first = record(model, (X,))
    assert record(model, (X[:1],)) is not first
    change(model)
    assert record(model, (X,)) is not first

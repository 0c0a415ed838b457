"""Multiply-adds and peak activations, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flipout.export.forward_costs import multiply_adds, peak_activation_bytes, zero_multiply_adds


class Residual(nn.Module):
    """Keeps its input of 400 bytes alive while two more of that size are made."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).exp() + x


def test_peak_activations_by_hand() -> None:
    x = torch.randn(1, 100)
    # Each operation needs its inputs, its output, and the tensors that are read later.
    assert peak_activation_bytes(nn.Identity(), (x,)) == 400
    assert peak_activation_bytes(nn.Sequential(nn.ReLU(inplace=True)), (x,)) == 400
    assert peak_activation_bytes(nn.Sequential(nn.Linear(100, 50), nn.Flatten()), (x,)) == 600
    assert peak_activation_bytes(Residual(), (x,)) == 1200


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (2, 3, 6)),
        (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 4)),
    ],
    ids=repr,
)
def test_a_layer_of_zeros_skips_all_its_multiply_adds(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert zero_multiply_adds(layer, (x,)) == 0
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert zero_multiply_adds(layer, (x,)) == multiply_adds(layer, (x,)) > 0

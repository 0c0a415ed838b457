"""Peak activations, counted by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flipout.export.activation_memory import peak_activation_bytes


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

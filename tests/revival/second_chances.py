"""What the tests of second chances share: short trainings in which pruned weights come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.hidden_values import hidden_values_of

STEPS = 60
REVIVAL = flipout.Revival(events=40)
METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    name: flipout.METHODS[name] for name in ("flipout", "magnitude", "random", "magnitude-uncertainty")
}


def magnitude(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> flipout.Pruner:
    given = {"sparsity": 0.9, "steps": STEPS, "revival": REVIVAL, **options}
    return flipout.GlobalMagnitude(model, optimizer, **given)


def hidden(pruner: flipout.Pruner) -> dict[str, Tensor]:
    """The hidden values of every weight, between steps."""
    return {
        layer.name: hidden_values_of(layer.weight.detach(), layer.mask, layer.hidden)
        for layer in pruner.layers
        if layer.hidden is not None
    }

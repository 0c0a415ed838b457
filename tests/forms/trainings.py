"""What the tests of second chances share: short trainings in which pruned weights come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flipout

STEPS = 60
CHANCES = flipout.SecondChances(events=40)
METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    name: flipout.METHODS[name] for name in ("flipout", "magnitude", "random", "magnitude-uncertainty")
}


def magnitude(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> flipout.Pruner:
    given = {"sparsity": 0.9, "steps": STEPS, "second_chances": CHANCES, **options}
    return flipout.GlobalMagnitude(model, optimizer, **given)


def hidden(pruner: flipout.Pruner) -> dict[str, Tensor]:
    """The hidden values of every weight, between steps."""
    return {weight.name: pruner.form.trained(weight).detach() for weight in pruner.weights if weight.slots}

"""The gradient as a statistic."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Place, Statistic


class Gradient(Statistic):
    """The latest gradient of the loss: zero at pruned weights, without noise."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["grad"] = torch.zeros_like(weight)

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        if grad is not None:
            self.state["grad"].copy_(grad)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["grad"]


class FullGradient(Gradient):
    """The latest gradient of the loss at every weight, pruned ones included: what regrowth by gradient ranks by."""

    gradient = "unmasked"
    only_for_prunings = True

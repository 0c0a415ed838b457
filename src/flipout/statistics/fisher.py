"""The diagonal of the empirical Fisher information: the mean of a weight's squared gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Place, Statistic


class SquaredGradient(Statistic):
    """The mean of a weight's recent squared gradients, exponentially weighted: the diagonal of the empirical Fisher.

    The newest one has weight `1/t` up to step `t = horizon`, and `1/horizon` from then on. So it is the plain mean at
    first, and has no bias towards its initial value. The gradients have no noise. A step without a gradient does not
    count.

    The gradients of pruned weights are 0 if masked, and the mean of a pruned weight then fades. For the mean of pruned
    weights too, use `FullSquaredGradient`.
    """

    shared = ("count",)

    def __init__(self, weight: Tensor, place: Place, *, horizon: int = 100) -> None:
        super().__init__(weight, place)
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; give the number of recent gradients to use, at least 1")
        self.horizon = horizon
        self.state["count"] = torch.zeros((), dtype=torch.int64, device="cpu")
        self.state["mean"] = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        if grad is None:
            return
        self.state["count"] += 1
        newest = 1 / min(int(self.state["count"]), self.horizon)
        mean = self.state["mean"]
        wide = grad.to(mean.dtype)  # the square of a half-precision gradient vanishes
        mean.mul_(1 - newest).addcmul_(wide, wide, value=newest)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["mean"]

    @staticmethod
    def reader(weight: Tensor, mean: Tensor) -> Tensor:
        """The means as they are."""
        return mean


class FullSquaredGradient(SquaredGradient):
    """The same with the gradient at every weight, pruned ones included."""

    gradient = "unmasked"

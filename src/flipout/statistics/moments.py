"""Moments of a weight's recent values."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Place, Statistic


class Deviation(Statistic):
    """The standard deviation of a weight's recent values, from exponentially weighted moments.

    The newest value has weight `1/t` up to step `t = horizon`, and `1/horizon` from then on. So it is exactly the
    deviation of all values at first, and that of about the last `horizon` values later.
    """

    shared = ("count",)

    def __init__(self, weight: Tensor, place: Place, *, horizon: int = 100) -> None:
        super().__init__(weight, place)
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; give the number of recent values to use, at least 1")
        self.horizon = horizon
        self.state["count"] = torch.zeros((), dtype=torch.int64, device="cpu")
        self.state["mean"] = torch.zeros_like(weight, dtype=torch.float32)
        self.state["variance"] = torch.zeros_like(weight, dtype=torch.float32)

    def after(self, weight: Tensor, alive: Tensor) -> None:
        self.state["count"] += 1
        newest = 1 / min(int(self.state["count"]), self.horizon)
        difference = weight.float() - self.state["mean"]
        self.state["mean"].add_(difference, alpha=newest)
        self.state["variance"].addcmul_(difference, difference, value=newest).mul_(1 - newest)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["variance"].sqrt()

"""Statistics of gradients: the latest one, and the mean of its squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .base import Place, Statistic


class Gradient(Statistic):
    """The latest gradient of the loss: zero at pruned weights, without noise."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["grad"] = torch.zeros_like(weight)

    @classmethod
    def before_all(cls, statistics: Sequence[Self], weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        pairs = [(each.state["grad"], grad) for each, grad in zip(statistics, grads, strict=True) if grad is not None]
        if pairs:
            torch._foreach_copy_([kept for kept, _ in pairs], [grad for _, grad in pairs])

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["grad"]


class FullGradient(Gradient):
    """The latest gradient of the loss at every weight, pruned ones included: what regrowth by gradient ranks by."""

    gradient = "unmasked"
    only_for_prunings = True


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

    @classmethod
    def before_all(cls, statistics: Sequence[Self], weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        pairs = [(each, grad) for each, grad in zip(statistics, grads, strict=True) if grad is not None]
        if not pairs:
            return
        torch._foreach_add_([each.state["count"] for each, _ in pairs], 1)
        newest = [1 / min(int(each.state["count"]), each.horizon) for each, _ in pairs]
        means = [each.state["mean"] for each, _ in pairs]
        # The square of a half-precision gradient vanishes.
        wide = [grad.to(mean.dtype) for mean, (_, grad) in zip(means, pairs, strict=True)]
        torch._foreach_mul_(means, [1 - share for share in newest])
        torch._foreach_addcmul_(means, wide, wide, newest)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["mean"]

    @staticmethod
    def reader(weight: Tensor, mean: Tensor) -> Tensor:
        """The means as they are."""
        return mean


class FullSquaredGradient(SquaredGradient):
    """The same with the gradient at every weight, pruned ones included."""

    gradient = "unmasked"

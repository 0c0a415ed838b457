"""Statistics of the weights themselves: their values, deviation and fan-in, and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..modules import inputs_first, is_stacked
from ..numerics import wide
from ..random_numbers import uniform
from .base import Place, Statistic


class Value(Statistic):
    """The weight in float32 or float64, so that a power of a half-precision weight does not vanish."""

    gradient = None
    reader = staticmethod(wide)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return wide(weight)


class Deviation(Statistic):
    """The standard deviation of a weight's recent values, from exponentially weighted moments.

    The newest value has weight `1/t` up to step `t = horizon`, and `1/horizon` from then on. So it is exactly the
    deviation of all values at first, and that of about the last `horizon` values later.
    """

    gradient = None
    shared = ("count",)

    def __init__(self, weight: Tensor, place: Place, *, horizon: int = 100) -> None:
        super().__init__(weight, place)
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; give the number of recent values to use, at least 1")
        self.horizon = horizon
        self.state["count"] = torch.zeros((), dtype=torch.int64, device="cpu")
        self.state["mean"] = torch.zeros_like(weight, dtype=torch.float32)
        self.state["variance"] = torch.zeros_like(weight, dtype=torch.float32)

    @classmethod
    def after_all(cls, statistics: Sequence[Self], weights: Sequence[Tensor], alive: Sequence[Tensor]) -> None:
        torch._foreach_add_([each.state["count"] for each in statistics], 1)
        newest = 1 / min(int(statistics[0].state["count"]), statistics[0].horizon)  # all have seen the same steps
        means, variances = ([each.state[key] for each in statistics] for key in ("mean", "variance"))
        differences = torch._foreach_sub([weight.detach().float() for weight in weights], means)
        torch._foreach_add_(means, differences, alpha=newest)
        torch._foreach_addcmul_(variances, differences, differences, newest)
        torch._foreach_mul_(variances, 1 - newest)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["variance"].sqrt()


class FanIn(Statistic):
    """The fan-in of the layer: the same number for each of its weights. It is not tracked, and takes no memory."""

    gradient = None

    def value(self, weight: Tensor, step: int) -> Tensor:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        number = torch.full((), self.place.fan_in, dtype=dtype, device=weight.device)
        return number.expand(weight.shape)


class Uniform(Statistic):
    """Uniform random numbers, new ones at each step, computed from the pruner's seed: the same when read again."""

    gradient = None

    def value(self, weight: Tensor, step: int) -> Tensor:
        where = self.place.positions or weight.shape
        return uniform(where, seed=self.place.seed, step=step, tensor=self.place.tensor, device=weight.device)


def fan_in_of(module: nn.Module, weight: Tensor) -> int:
    """The number of weights in the sum that makes one output of a module; at least 1.

    It is the number of elements under one index of the first dimension, as in `torch.nn.init`. A transposed convolution
    has its inputs in the first dimension; there it is the inputs of a group times the size of the kernel (the stride is
    not counted). A matrix of stacked experts has them in the last one, or in the second. An embedding and a vector have
    no sums: 1. A module that stores a matrix as (inputs, outputs), such as `Conv1D` of transformers, is not recognized.
    """
    if weight.ndim < 2 or isinstance(module, nn.Embedding):
        return 1
    if weight.ndim == 3 and is_stacked(module):
        return max(1, weight.shape[1 if inputs_first(module) else 2])
    if isinstance(module, _ConvTransposeNd):
        return max(1, weight.shape[0] // module.groups * weight.shape[2:].numel())
    return max(1, weight.shape[1:].numel())

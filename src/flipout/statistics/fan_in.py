"""The fan-in of a layer as a statistic: how many weights feed one of its outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from .base import Statistic


def fan_in_of(module: nn.Module, weight: Tensor) -> int:
    """The number of weights in the sum that makes one output of a module; at least 1.

    It is the number of elements under one index of the first dimension, as in `torch.nn.init`. A transposed convolution
    has its inputs in the first dimension; there it is the inputs of a group times the size of the kernel (the stride is
    not counted). An embedding and a vector have no sums: 1. A module that stores a matrix as (inputs, outputs), such as
    `Conv1D` of transformers, is not recognized.
    """
    if weight.ndim < 2 or isinstance(module, nn.Embedding):
        return 1
    if isinstance(module, _ConvTransposeNd):
        return max(1, weight.shape[0] // module.groups * weight.shape[2:].numel())
    return max(1, weight.shape[1:].numel())


class FanIn(Statistic):
    """The fan-in of the layer: the same number for each of its weights. It is not tracked, and takes no memory."""

    gradient = None

    def value(self, weight: Tensor, step: int) -> Tensor:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        number = torch.full((), self.place.fan_in, dtype=dtype, device=weight.device)
        return number.expand(weight.shape)

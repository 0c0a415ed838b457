"""Sums over all parts of a weight that gradients pass through, for penalties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .local_tensors import is_sharded
from .parts import Part


def differentiable(weight: Any) -> Tensor:
    """The part of a weight that this rank holds; gradients of it reach the weight."""
    local: Tensor = weight.to_local() if is_sharded(weight) else weight
    return local


def total(number: Tensor, part: Part | None) -> Tensor:
    """The sum of a number over all parts of a weight; the number itself for an ordinary weight."""
    summed: Tensor = number if part is None else _Total.apply(number, part)  # type: ignore[no-untyped-call]
    return summed


class _Total(torch.autograd.Function):
    """Every rank computes the same value from the sum, so the gradient of its own term is that of the sum."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, part: Part) -> Tensor:
        return part.sum(number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None

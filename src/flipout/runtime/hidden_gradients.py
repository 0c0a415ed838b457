"""The gradients that hidden values learn from: those of pruned weights count less, and no unit moves too far."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics import kept, wide
from ..shards.parts import Part


def teach(weight: Tensor, grad: Tensor, mask: Tensor, share: Tensor, trust: Tensor) -> None:
    """Multiply the gradient of pruned weights with a share, and shorten the gradient of each unit that is too long.

    A unit is everything under one index of the first dimension: the weights of an output channel. Its gradient is at
    most `trust` times as long as its weights, hidden ones included (adaptive gradient clipping, Brock et al., 2021).
    Batch norm divides by the deviation of a channel, so the gradient of a channel that has lost nearly all of its
    weights is hundreds of times too long. Without a limit such channels throw their hidden values about, come back by
    accident, and take the place of others until whole layers are dead. A gradient of a pruned weight that is not finite
    counts as 0, because the network does not depend on it.
    """
    scaled = _scaled(grad, mask, share)
    _shorten(grad, scaled, _squares(wide(weight)).sqrt(), _squares(scaled).sqrt(), trust)


def teach_part(weight: Tensor, grad: Tensor, mask: Tensor, share: Tensor, trust: Tensor, part: Part) -> None:
    """`teach` for the part of a weight that this rank holds, if others hold more of the same units."""
    if weight.ndim < 2:  # a vector is one unit
        weight, grad, mask = weight.unsqueeze(0), grad.unsqueeze(0), mask.unsqueeze(0)
    scaled = _scaled(grad, mask, share)
    size, length = part.sum_of_rows(torch.stack([_squares(wide(weight)), _squares(scaled)])).sqrt()
    _shorten(grad, scaled, size, length, trust)


def _scaled(grad: Tensor, mask: Tensor, share: Tensor) -> Tensor:
    """The gradient, with that of pruned weights multiplied with a share."""
    full = wide(grad)
    less = share * full
    return torch.where(kept(mask), full, torch.where(less.abs() < torch.inf, less, 0))


def _shorten(grad: Tensor, scaled: Tensor, size: Tensor, length: Tensor, trust: Tensor) -> None:
    """Write a scaled gradient of a certain length into `grad`, at most `trust` times as long as the size of its unit.

    The least size is that of Brock et al.
    """
    allowed = trust * size.clamp_min(1e-3)
    grad.copy_(scaled * torch.where(length > allowed, allowed / length, 1))


def _squares(tensor: Tensor) -> Tensor:
    """The sum of the squares of each unit, in a shape that is broadcast over it."""
    return tensor.square().sum(tuple(range(1, tensor.ndim)), keepdim=True)

"""The gradients that hidden values learn from: those of pruned weights count less, and no unit moves too far."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics import wide


def teach(weight: Tensor, grad: Tensor, mask: Tensor, share: Tensor, trust: Tensor) -> None:
    """Multiply the gradient of pruned weights with a share, and shorten the gradient of each unit that is too long.

    A unit is everything under one index of the first dimension: the weights of an output channel. Its gradient is at
    most `trust` times as long as its weights, hidden ones included (adaptive gradient clipping, Brock et al., 2021).
    Batch norm divides by the deviation of a channel, so the gradient of a channel that has lost nearly all of its
    weights is hundreds of times too long. Without a limit such channels throw their hidden values about, come back by
    accident, and take the place of others until whole layers are dead. A gradient of a pruned weight that is not finite
    counts as 0, because the network does not depend on it.
    """
    full = wide(grad)
    scaled = torch.where(mask.bool(), full, (share * full).nan_to_num(0, 0, 0))
    allowed, length = trust * _norms(wide(weight)).clamp_min(1e-3), _norms(scaled)
    grad.copy_(scaled * torch.where(length > allowed, allowed / length, 1))


def _norms(tensor: Tensor) -> Tensor:
    """The norm of each unit, in a shape that is broadcast over it. The least norm is that of Brock et al."""
    return tensor.square().sum(tuple(range(1, tensor.ndim)), keepdim=True).sqrt()

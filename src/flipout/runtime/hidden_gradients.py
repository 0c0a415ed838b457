"""The gradients that hidden values learn from: those of pruned weights count less, and no layer moves too far."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics import wide


def weigh(grad: Tensor, mask: Tensor, share: Tensor) -> None:
    """Multiply the gradient of pruned weights with a factor."""
    kept = mask.to(share.dtype)
    grad.mul_(kept + share * (1 - kept))


def limit(weight: Tensor, grad: Tensor, trust: Tensor) -> None:
    """Shorten the gradient of a layer to `trust` times the norm of its hidden values, if it is longer than that.

    With batch norm the gradient of a layer grows as its weights shrink. Without a limit hidden values are thrown about,
    the masks change all the time, and layers die.
    """
    grad.mul_(factor(weight, grad, trust))


def factor(weight: Tensor, grad: Tensor, trust: Tensor) -> Tensor:
    """`min(1, trust * ||weight|| / ||grad||)`; 1 for a gradient of zeros."""
    allowed, length = trust * _norm(weight), _norm(grad)
    return torch.where(length > allowed, allowed / length, 1)


def _norm(tensor: Tensor) -> Tensor:
    return wide(tensor).square().sum().sqrt()

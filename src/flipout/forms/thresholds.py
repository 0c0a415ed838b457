"""The form of dynamic sparse training (Liu et al., 2020): every unit learns a threshold for its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import latent_loops
from ..kernels.step_loops import in_c
from ..numerics import wide
from ..ranking.host_numbers import counts
from ..weights import Weight
from .latent import Latent

LEAST = 0.01
"""A layer that computes with at most this share of its weights gets its thresholds reset to 0 (Sec. 3.3)."""

MOMENTUM = 0.9


def surrogate(x: Tensor) -> Tensor:
    """What stands for the derivative of the unit step: `2 - 4 |x|` up to 0.4, 0.4 up to 1, and 0 beyond (Eq. 4)."""
    size = x.abs()
    return torch.where(size <= 0.4, 2 - 4 * size, 0.4 * (size <= 1).to(size.dtype))


def saliency(theta: Tensor, threshold: Tensor) -> Tensor:
    return theta.abs() - threshold


def survives(theta: Tensor, threshold: Tensor) -> Tensor:
    return saliency(theta, threshold) > 0


@in_c(latent_loops.thresholded)
def computed(theta: Tensor, threshold: Tensor, noise: Tensor | None) -> Tensor:
    return torch.where(survives(theta, threshold), theta, 0)


@in_c(latent_loops.thresholded_backward)
def backward(
    theta: Tensor, threshold: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    """With the mask `M = S(Q)`, `Q = |theta| - t`, and `dM/dQ` by `surrogate`:
    `dL/dtheta = G M + G theta dM/dQ sgn(theta)` and `dL/dt = -sum(G theta dM/dQ) - lambda exp(-t)`."""
    through_mask = grad * theta * surrogate(theta.abs() - threshold)
    own = torch.where(survives(theta, threshold), grad, 0) + through_mask * theta.sign()
    return own, -through_mask.sum_to_size(threshold.shape) - lambda_ * (-threshold).exp()


class Thresholds(Latent):
    """The network computes with `theta` where `|theta| > t`, and with 0 elsewhere. The penalty is `sum exp(-t)`, which
    pulls thresholds up. The latent is the threshold `t` of a unit: of everything under one index of the first
    dimension. A vector is one unit.

    No weight decay acts on thresholds: the optimizer of the user does not know of them.

    Args:
        lambda_: weight of the penalty in the loss: the paper's alpha.
        latent_lr: learning rate of the thresholds, for SGD with momentum.
    """

    computed, backward = staticmethod(computed), staticmethod(backward)
    saliency, survives = staticmethod(saliency), staticmethod(survives)
    noisy: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("momentum",)

    def __init__(self, lambda_: float, latent_lr: float) -> None:
        super().__init__(lambda_, latent_lr, seed=0)

    def start_of(self, weight: Weight) -> Tensor:
        local = weight.local.detach()
        shape = [size if local.ndim > 1 and not dim else 1 for dim, size in enumerate(local.shape)]
        return torch.zeros(shape, dtype=wide(local).dtype, device=local.device)

    def update(self, weight: Weight, latent: Tensor, grad: Tensor, step: int) -> None:
        velocity = weight.slots["momentum"].mul_(MOMENTUM).add_(grad)
        latent.sub_(velocity, alpha=self.latent_lr)

    def settled(self, weights: Sequence[Weight]) -> None:
        """Reset the thresholds of layers that compute with next to nothing."""
        for weight, active in zip(weights, counts([weight.local for weight in weights]), strict=True):
            if active <= LEAST * weight.kept:
                weight.slots["latent"].zero_()
                self._show(weight, sampled=False)

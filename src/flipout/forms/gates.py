"""The form of L0 regularization (Louizos et al., 2018): every weight or unit has a gate that learns to close."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..kernels import latent_loops
from ..kernels.step_loops import in_c
from ..numerics import wide
from ..random_numbers import normal, uniform_at
from ..views import Positions
from ..weights import Weight
from .latent import Latent

Gates = Literal["weight", "unit"]

GAMMA, ZETA, BETA = -0.1, 1.1, 2 / 3
"""The stretched interval and the temperature of the hard concrete distribution (Sec. 4)."""

LARGEST = math.log(1e2)
"""`log alpha` is kept within this size, as in the code of the paper: a gate that is closed can open again."""

EDGE = 1e-6
"""Uniform numbers are kept this far from 0 and 1."""


def gate(log_alpha: Tensor, noise: Tensor | None) -> Tensor:
    """A gate before it is clipped to [0, 1]: `s (zeta - gamma) + gamma`, with the hard concrete
    `s = sigmoid((logit u + log alpha) / beta)` of uniform numbers (Eq. 10), or `s = sigmoid(log alpha)` (Eq. 13)."""
    s = log_alpha if noise is None else (torch.logit(noise.clamp(EDGE, 1 - EDGE)) + log_alpha) / BETA
    return torch.sigmoid(s) * (ZETA - GAMMA) + GAMMA


def gate_slope(log_alpha: Tensor, noise: Tensor | None) -> Tensor:
    """The derivative of a clipped gate: 0 where it is closed or fully open."""
    stretched = gate(log_alpha, noise)
    s = (stretched - GAMMA) / (ZETA - GAMMA)
    inner = s * (1 - s) * (ZETA - GAMMA) * (1.0 if noise is None else 1 / BETA)
    return torch.where((stretched > 0) & (stretched < 1), inner, 0)


def open_probability(log_alpha: Tensor) -> Tensor:
    """The probability that a gate is not closed: `sigmoid(log alpha - beta log(-gamma / zeta))` (Eq. 12)."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


@in_c(latent_loops.gated)
def computed(theta: Tensor, log_alpha: Tensor, noise: Tensor | None) -> Tensor:
    """`theta * z`."""
    return theta * gate(log_alpha, noise).clamp(0, 1)


@in_c(latent_loops.gated_backward)
def backward(
    theta: Tensor, log_alpha: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    """`dL/dtheta = G z` and `dL/dlog alpha = sum(G theta) z' + lambda n p (1 - p)` of the `n` weights of a gate."""
    likelihood = (grad * theta).sum_to_size(log_alpha.shape) * gate_slope(log_alpha, noise)
    p = open_probability(log_alpha)
    penalty = lambda_ * (theta.numel() // log_alpha.numel()) * p * (1 - p)
    return grad * gate(log_alpha, noise).clamp(0, 1), likelihood + penalty


def saliency(theta: Tensor, log_alpha: Tensor) -> Tensor:
    return log_alpha.expand_as(theta)


def survives(theta: Tensor, log_alpha: Tensor) -> Tensor:
    return (gate(log_alpha, None) > 0).expand_as(theta)


def folded(theta: Tensor, log_alpha: Tensor) -> Tensor:
    return computed(theta, log_alpha, None)


class HardConcrete(Latent):
    """The network computes with `theta * z`, where `z` is the gate of a weight or of a unit. The penalty is the
    expected number of weights whose gate is not closed. The latent is `log alpha` of a gate.

    A unit is an input of a linear layer or an output channel of a convolution, as in the paper.

    Args:
        lambda_: weight of the penalty in the loss: the paper's `lambda / N` for `N` training examples.
        latent_lr: learning rate of `log alpha`, for Adam.
        seed: the seed of the noise.
        gates: one gate for each weight, or for each unit.
        drop: the initial probability to drop a weight, roughly.
    """

    computed, backward = staticmethod(computed), staticmethod(backward)
    saliency, survives, folded = staticmethod(saliency), staticmethod(survives), staticmethod(folded)

    def __init__(self, lambda_: float, latent_lr: float, seed: int, gates: Gates, drop: float) -> None:
        super().__init__(lambda_, latent_lr, seed)
        self.gates, self.drop = gates, drop

    def start_of(self, weight: Weight) -> Tensor:
        """`N(log((1 - drop) / drop), 0.01)`."""
        drawn = normal(self._shape(weight), seed=self.seed, step=-1, tensor=weight.number, device=weight.local.device)
        return (drawn * 0.01 + math.log((1 - self.drop) / self.drop)).to(wide(weight.local).dtype)

    def _shape(self, weight: Weight) -> torch.Size:
        shape = weight.local.shape
        if self.gates == "weight" or len(shape) < 2:
            return shape
        return torch.Size([1, shape[1]]) if len(shape) == 2 else torch.Size([shape[0], *[1] * (len(shape) - 1)])

    def noise(self, weight: Weight, step: int) -> Tensor:
        return self.drawn(uniform_at, "uniform", Positions.all_of(self._shape(weight)), weight, step)

    def update(self, weight: Weight, latent: Tensor, grad: Tensor, step: int) -> None:
        super().update(weight, latent, grad, step)
        latent.clamp_(-LARGEST, LARGEST)

"""The form of sparse variational dropout (Molchanov et al., 2017): every weight has a noise of its own, and is pruned
where the noise drowns it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import latent_loops
from ..kernels.step_loops import in_c
from ..numerics import wide
from ..random_numbers import normal_at
from ..weights import Weight
from .latent import Latent

K1, K2, K3 = 0.63576, 1.8732, 1.48695
"""The constants of Eq. 14."""

LIMIT, PRUNED = 8.0, 3.0
"""`log alpha` is clipped to this size; a weight is pruned from this `log alpha` on (Sec. 4.3)."""

START = -10.0
"""The initial logarithm of the variance."""


def log_alpha(theta: Tensor, log_variance: Tensor) -> Tensor:
    """`log alpha = log sigma^2 - log theta^2`: how noisy a weight is, relative to its size (Eq. 11), clipped."""
    return (log_variance - (theta.square() + 1e-8).log()).clamp(-LIMIT, LIMIT)


def divergence(log_alpha: Tensor) -> Tensor:
    """The approximate KL divergence from the log-uniform prior (Eq. 14), 0 for infinite noise:
    `k1 - k1 sigmoid(k2 + k3 log alpha) + log(1 + 1 / alpha) / 2`."""
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + torch.nn.functional.softplus(-log_alpha) / 2


def slope(log_alpha: Tensor) -> Tensor:
    """The derivative of `divergence`."""
    rising = torch.sigmoid(K2 + K3 * log_alpha)
    return -K1 * K3 * rising * (1 - rising) - torch.sigmoid(-log_alpha) / 2


def saliency(theta: Tensor, log_variance: Tensor) -> Tensor:
    """`-log alpha`, not clipped, which would make many weights equal."""
    return (theta.square() + 1e-8).log() - log_variance


def survives(theta: Tensor, log_variance: Tensor) -> Tensor:
    return saliency(theta, log_variance) > -PRUNED


@in_c(latent_loops.variational)
def computed(theta: Tensor, log_variance: Tensor, noise: Tensor | None) -> Tensor:
    """`theta + sigma * eps`, and 0 where a weight is pruned."""
    values = theta if noise is None else theta + (log_variance / 2).exp() * noise
    return torch.where(survives(theta, log_variance), values, 0)


@in_c(latent_loops.variational_backward)
def backward(
    theta: Tensor, log_variance: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    """`dL/dtheta = G - lambda KL' 2 theta / (theta^2 + 1e-8)` and `dL/dlog sigma^2 = G eps sigma / 2 + lambda KL'`,
    with `G = 0` where a weight is pruned."""
    log = log_alpha(theta, log_variance)
    grad = torch.where(log < PRUNED, grad, 0)
    pull = torch.where(log.abs() < LIMIT, lambda_ * slope(log), 0)
    through_noise = 0 if noise is None else grad * noise * (log_variance / 2).exp() / 2
    return grad - pull * 2 * theta / (theta.square() + 1e-8), through_noise + pull


class VariationalDropoutForm(Latent):
    """The network computes with `theta + sigma * eps`, `eps ~ N(0, 1)`, and with 0 where `log alpha >= 3`. The penalty
    is the KL divergence. The latent is `log sigma^2` (additive noise, Sec. 4.2).

    One sample serves a whole batch, where the paper samples the outputs of a layer for each example (the local
    reparameterization).

    Args:
        lambda_: weight of the KL divergence in the loss: 1 divided by the number of training examples.
        latent_lr: learning rate of `log sigma^2`, for Adam.
        seed: the seed of the noise.
        warm_up: the shares of training at which the penalty starts, and at which it has its full weight.
    """

    computed, backward = staticmethod(computed), staticmethod(backward)
    saliency, survives = staticmethod(saliency), staticmethod(survives)

    def __init__(self, lambda_: float, latent_lr: float, seed: int, warm_up: tuple[float, float]) -> None:
        super().__init__(lambda_, latent_lr, seed)
        self.warm_up = warm_up

    def start_of(self, weight: Weight) -> Tensor:
        return torch.full_like(wide(weight.local.detach()), START)

    def noise(self, weight: Weight, step: int) -> Tensor:
        return self.drawn(normal_at, "normal", weight.view.positions, weight, step)

    def penalty_weight(self, step: int) -> float:
        start, full = (share * self._steps for share in self.warm_up)
        share = (step - start) / (full - start) if full > start else float(step >= start)
        return self.lambda_ * min(1.0, max(0.0, share))

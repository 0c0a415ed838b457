"""The loops of the latent forms in C, and their noise; see `step_loops.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from .step_loops import run


def normal_at(starts: Tensor, offsets: Tensor, factor: int, addend: int) -> Tensor:
    return _noise("normal", starts, offsets, factor, addend)


def uniform_at(starts: Tensor, offsets: Tensor, factor: int, addend: int) -> Tensor:
    return _noise("uniform", starts, offsets, factor, addend)


def _noise(loop: str, starts: Tensor, offsets: Tensor, factor: int, addend: int) -> Tensor:
    values = torch.empty(len(starts), len(offsets), dtype=torch.float32, device="cpu")  # whatever the defaults are
    run(loop, values, values=values, starts=starts, offsets=offsets, one_factor=factor, one_addend=addend)
    return values


def adam(latent: Tensor, grad: Tensor, first: Tensor, second: Tensor, rate: float, step: int) -> None:
    numbers = {"rate": rate / (1 - 0.9**step), "bias": 1 - 0.999**step}
    run("adam", latent, latent=latent, latent_gradients=grad, first=first, second=second, **numbers)


def variational(theta: Tensor, log_variance: Tensor, noise: Tensor | None) -> Tensor:
    values = torch.empty_like(theta)
    run("variational", theta, values=values, theta=theta, latent=log_variance, noise=noise)
    return values


def variational_backward(
    theta: Tensor, log_variance: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    return _backward("variational_backward", theta, log_variance, noise, grad, lambda_)


def thresholded(theta: Tensor, threshold: Tensor, noise: Tensor | None) -> Tensor:
    """The latent is a number for each row."""
    values = torch.empty_like(theta)
    run("threshold", theta, values=values, theta=theta, latent=threshold)
    return values


def thresholded_backward(
    theta: Tensor, threshold: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    return _backward("threshold_backward", theta, threshold, None, grad, lambda_)


def _backward(
    loop: str, theta: Tensor, latent: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    own, through = torch.empty_like(theta), torch.empty_like(latent)
    tensors = {"theta": theta, "latent": latent, "noise": noise, "gradients": grad}
    run(loop, theta, values=own, latent_gradients=through, **tensors, **{"lambda": lambda_.item()})
    return own, through


def gated(theta: Tensor, log_alpha: Tensor, noise: Tensor | None) -> Tensor:
    """A gate belongs to a weight, a row or a column."""
    each = theta.shape == log_alpha.shape
    values = torch.empty_like(log_alpha)
    run("gate", log_alpha, latent=log_alpha, noise=noise, values=values, theta=theta if each else None)
    return values if each else theta * values


def gated_backward(
    theta: Tensor, log_alpha: Tensor, noise: Tensor | None, grad: Tensor, lambda_: Tensor
) -> tuple[Tensor, Tensor]:
    each = theta.shape == log_alpha.shape
    values, slopes, through = (torch.empty_like(log_alpha) for _ in range(3))
    tensors = {"latent": log_alpha, "noise": noise, "theta": theta if each else None, "gradients": grad}
    weight = {"lambda": lambda_.item() * (theta.numel() // log_alpha.numel())}
    run("gate_backward", log_alpha, values=values, first=slopes, latent_gradients=through, **tensors, **weight)
    if each:
        return values, through
    return grad * values, through.addcmul_((grad * theta).sum_to_size(log_alpha.shape), slopes)

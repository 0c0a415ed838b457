"""Batch norms in training, for networks whose layers compute with sparse kernels.

Sparse layers lay the channels of an image one after the other. In this order torch's own batch norm is several times
slower than in the other one, which dense layers prefer.
"""

from __future__ import annotations

import math
from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from .library import Norm, kernels
from .sparse_function import refuse_second_derivatives

FEWEST_PIXELS = 16
"""A channel of an image with fewer numbers is left to torch."""
WORK_OF_A_THREAD = 1 << 15
"""Numbers that are worth waking a thread for."""


class BatchNormFunction(torch.autograd.Function):
    """`apply(input, weight, bias, epsilon)` returns the output, and the mean and variance of each channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> tuple[Tensor, ...]:
        output = torch.empty_like(x)
        mean, variance, scale = (x.new_empty(x.shape[1]) for _ in range(3))
        _run(x, mean, scale, weight, bias=bias, output=output, variance=variance, epsilon=epsilon)
        ctx.save_for_backward(x, mean, scale, weight)
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(mean, variance)
        return output, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, mean, scale, weight = ctx.saved_tensors
        of_input = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_weight, of_bias = torch.empty_like(mean), torch.empty_like(mean)
        gradient = gradients[0].contiguous()
        _run(
            *(x, mean, scale, weight),
            output_gradient=gradient,
            input_gradient=of_input,
            weight_gradient=of_weight,
            bias_gradient=of_bias,
        )
        return of_input, None if weight is None else of_weight, of_bias if ctx.has_bias else None, None


class BatchNormComputation:
    """How the batch norms of a network compute: in C while `active`, otherwise as torch does."""

    active = False

    def output(self, norm: _BatchNorm, x: Tensor) -> Tensor | None:
        """The output of a batch norm, whose running statistics are updated; None if it has to be computed by torch."""
        norm._check_input_dim(x)  # type: ignore[no-untyped-call]
        if not self.active or not norm.training or not _fits(norm, x):
            return None
        found: tuple[Tensor, ...] = BatchNormFunction.apply(x, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
        output, mean, variance = found
        if norm.track_running_stats:
            _track(norm, mean, variance, x.numel() // x.shape[1])
        return output


@torch.no_grad()
def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as torch does."""
    share = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        share = 1 / float(norm.num_batches_tracked) if share is None else share
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.lerp_(mean, share or 0.0)
        norm.running_var.lerp_(variance * (count / (count - 1)), share or 0.0)


def _fits(norm: _BatchNorm, x: Tensor) -> bool:
    """Whether the kernels compute what torch would, and in which order the numbers lie."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined, no-untyped-call]
        return False
    of_channels = [each for each in (norm.weight, norm.bias, norm.running_mean) if each is not None]
    return (
        type(x) is Tensor
        and x.ndim > 2
        and x.numel() > 0
        and math.prod(x.shape[2:]) >= FEWEST_PIXELS
        and all(each.shape == x.shape[1:2] for each in of_channels)  # torch raises the error
        and all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (x, *of_channels))
        and all(each.is_contiguous() for each in (x, *of_channels))
    )


def _run(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, epsilon: float = 0.0, **tensors: Any) -> None:
    images, channels = x.shape[:2]
    threads = max(1, min(torch.get_num_threads(), x.numel() // WORK_OF_A_THREAD))
    tensors |= {"input": x, "mean": mean, "scale": scale, "weight": weight}
    addresses = {name: each.data_ptr() for name, each in tensors.items() if each is not None}
    size = images, channels, x.numel() // (images * channels), threads
    kernels().norm(byref(Norm(*size, epsilon=epsilon, **addresses)))

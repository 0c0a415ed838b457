"""A sparse convolution as an operation that torch differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .geometry import Convolution
from .sparse_convolution import convolve, convolve_backward
from .sparse_pattern import SparsePattern


class SparseConvolutionFunction(torch.autograd.Function):
    """`apply(images, weight, bias, values, pattern, convolution, all_gradients)`.

    The weight is an argument for its gradient only: `values` are the kept ones. Its gradient is dense. Where a weight
    is pruned it is 0, or with `all_gradients` what a dense layer computes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        values: Tensor,
        pattern: SparsePattern,
        convolution: Convolution,
        all_gradients: bool,
    ) -> Tensor:
        ctx.save_for_backward(images, *([weight] if all_gradients else []))
        ctx.values, ctx.pattern, ctx.convolution, ctx.all_gradients = values, pattern, convolution, all_gradients
        return convolve(images, pattern, values, convolution, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        refuse_second_derivatives()
        images, *weights = ctx.saved_tensors
        of_images, of_weight, of_bias = ctx.needs_input_grad[:3]
        images_gradient, weight_gradient = convolve_backward(
            *(gradient, images, ctx.pattern, ctx.values, ctx.convolution),
            of_images=of_images,
            of_weight=of_weight and not ctx.all_gradients,
        )
        if of_weight and ctx.all_gradients:
            weight_gradient = dense_weight_gradient(gradient, images, weights[0], ctx.convolution)
        bias_gradient = gradient.sum((0, 2, 3)) if of_bias else None
        return images_gradient, weight_gradient, bias_gradient, None, None, None, None


def refuse_second_derivatives() -> None:
    """Raise an error in a backward pass that is recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "sparse kernels compute first derivatives only, and create_graph=True asks for second ones: call "
            "pruner.sparse_kernels.remove(), or train without sparse kernels"
        )


def dense_weight_gradient(gradient: Tensor, images: Tensor, weight: Tensor, convolution: Convolution) -> Tensor:
    """The gradient of all weights, as torch computes it."""
    images, padding = convolution.padded(images)
    kernel = weight.view(*convolution.channels[::-1], *convolution.kernel)
    sizes = convolution.stride, padding, convolution.dilation
    mask = [False, True, False]
    found: Tensor
    _, found, _ = torch.ops.aten.convolution_backward(gradient, images, kernel, None, *sizes, False, [0, 0], 1, mask)
    return found.view(weight.shape)

"""A sparse convolution and its gradients. A linear layer is a convolution of images of one pixel."""

from __future__ import annotations

from ctypes import addressof

import torch
from torch import Tensor

from .geometry import Convolution
from .library import KernelCall, Size, kernels, size_of
from .sparse_weight import SparseWeight

WORK_OF_A_THREAD = 2**18
"""Multiply-adds that are worth waking a thread for."""


def convolve(
    images: Tensor, weight: SparseWeight, convolution: Convolution, bias: Tensor | None = None, *, clip: bool = False
) -> Tensor:
    """Return the output (images, channels, height, width); with `clip` of negative numbers, as ReLU does."""
    images = images.contiguous()
    output = images.new_empty(len(images), convolution.channels[1], *convolution.out)
    if len(images):
        call = KernelCall(
            size=addressof(_size(images, weight, convolution)),
            forward=weight.indices(convolution).matrix(weight.values),
            input=images.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            output=output.data_ptr(),
            clip=clip,
        )
        kernels().run(call)
    return output


def convolve_backward(
    gradient: Tensor,
    images: Tensor,
    weight: SparseWeight,
    convolution: Convolution,
    *,
    of_images: bool,
    of_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the images and of the weight, as far as they are asked for.

    That of the weight is dense, and zero where a weight is pruned.
    """
    gradient, images = gradient.contiguous(), images.contiguous()
    of = torch.empty_like(images) if of_images else None
    dense = images.new_zeros(weight.shape) if of_weight else None
    if len(images) and (of_images or of_weight):
        indices = weight.indices(convolution)
        values = indices.in_transposed_order(weight.values)
        call = KernelCall(
            size=addressof(_size(images, weight, convolution)),
            forward=indices.matrix(weight.values),
            transposed=indices.transposed(values),
            positions=weight.positions.data_ptr(),
            input=images.data_ptr(),
            output_gradient=gradient.data_ptr(),
            input_gradient=None if of is None else of.data_ptr(),
            weight_gradient=None if dense is None else dense.data_ptr(),
        )
        kernels().run(call)
    return of, dense


def _size(images: Tensor, weight: SparseWeight, convolution: Convolution) -> Size:
    work = len(images) * convolution.length * len(weight.values)
    return size_of(convolution, len(images), max(1, min(torch.get_num_threads(), work // WORK_OF_A_THREAD)))

"""A sparse convolution and its gradients. A linear layer is a convolution of images of one pixel."""

from __future__ import annotations

from ctypes import addressof

import torch
from torch import Tensor

from .geometry import Convolution
from .library import KernelCall, Size, kernels, size_of
from .sparse_pattern import SparsePattern

WORK_OF_A_THREAD = 2**18
"""Multiply-adds that are worth waking a thread for."""


def convolve(
    images: Tensor,
    pattern: SparsePattern,
    values: Tensor,
    convolution: Convolution,
    bias: Tensor | None = None,
    *,
    clip: bool = False,
) -> Tensor:
    """Return the output (images, channels, height, width); with `clip`, negative numbers become 0, as by ReLU."""
    images = images.contiguous()
    output = images.new_empty(len(images), convolution.channels[1], *convolution.out)
    if len(images):
        size = _size(images, pattern, convolution)
        call = KernelCall(
            size=addressof(size),
            forward=pattern.indices(convolution).matrix(values),
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
    pattern: SparsePattern,
    values: Tensor,
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
    dense = images.new_zeros(pattern.shape) if of_weight else None
    if len(images) and (of_images or of_weight):
        indices = pattern.indices(convolution)
        size = _size(images, pattern, convolution)
        in_transposed_order = indices.in_transposed_order(values)
        call = KernelCall(
            size=addressof(size),
            forward=indices.matrix(values),
            transposed=indices.transposed(in_transposed_order),
            positions=pattern.positions.data_ptr(),
            input=images.data_ptr(),
            output_gradient=gradient.data_ptr(),
            input_gradient=None if of is None else of.data_ptr(),
            weight_gradient=None if dense is None else dense.data_ptr(),
        )
        kernels().run(call)
    return of, dense


def _size(images: Tensor, pattern: SparsePattern, convolution: Convolution) -> Size:
    work = len(images) * convolution.length * len(pattern)
    return size_of(convolution, len(images), max(1, min(torch.get_num_threads(), work // WORK_OF_A_THREAD)))

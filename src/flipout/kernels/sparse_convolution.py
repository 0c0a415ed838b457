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
    addend: Tensor | None = None,
    clip: bool = False,
) -> Tensor:
    """Return the output (images, channels, height, width).

    Args:
        addend: a tensor of the size of the output that is added to it.
        clip: whether negative numbers of the sum become 0, as by ReLU.
    """
    images = images.contiguous()
    output = images.new_empty(len(images), convolution.channels[1], *convolution.out)
    addend = None if addend is None else addend.expand(output.shape).contiguous()
    if len(images):
        size = _size(images, pattern, convolution)
        call = KernelCall(
            size=addressof(size),
            forward=pattern.indices(convolution).matrix(values),
            input=images.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            addend=None if addend is None else addend.data_ptr(),
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


def threads_for(convolution: Convolution, images: int, weights: int) -> int:
    """The threads for a call: as many as torch uses, if there is work for them."""
    work = images * convolution.length * weights
    return max(1, min(torch.get_num_threads(), work // WORK_OF_A_THREAD))


def _size(images: Tensor, pattern: SparsePattern, convolution: Convolution) -> Size:
    return size_of(convolution, len(images), threads_for(convolution, len(images), len(pattern)))

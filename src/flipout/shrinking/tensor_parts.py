"""Parts of tensors: taking a part out, writing it back, and giving a parameter other values of another shape."""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Positions


def take(full: Tensor, where: Positions) -> Tensor:
    """The part of a tensor at some positions, in the same memory format."""
    part = full
    for dimension, index in enumerate(where.indices):
        if index is not None:
            part = part.index_select(dimension, index.to(full.device))
    return part.contiguous(memory_format=_memory_format(full))


def put(full: Tensor, part: Tensor, where: Positions) -> None:
    """Write a part back into the tensor that it was taken from, in place."""
    partial = [(dimension, index) for dimension, index in enumerate(where.indices) if index is not None]
    if not partial:
        full.copy_(part)
        return
    (dimension, index), *others = partial
    index = index.to(full.device)
    if others:
        rest = tuple(None if number == dimension else each for number, each in enumerate(where.indices))
        slab = full.index_select(dimension, index)
        put(slab, part, Positions(slab.shape, rest))
        part = slab
    full.index_copy_(dimension, index, part)


def elements_outside(mask: Tensor, where: Positions) -> Tensor:
    """The numbers of the elements that a mask keeps and that are not at some positions, ascending."""
    outside = mask.clone(memory_format=torch.contiguous_format)
    put(outside, torch.zeros(where.part, dtype=torch.bool, device=mask.device), where)
    return outside.flatten().nonzero().flatten().cpu()


def take_elements(full: Tensor, elements: Tensor) -> Tensor:
    """Elements of a tensor by their numbers, as a vector."""
    return full.reshape(-1).index_select(0, elements.to(full.device))


def put_elements(full: Tensor, values: Tensor, elements: Tensor) -> None:
    """Write elements back by their numbers, in place."""
    indices = torch.unravel_index(elements.to(full.device), full.shape)
    full.index_put_(tuple(indices), values.to(full.dtype))


def replace_values(tensor: Tensor, values: Tensor) -> None:
    """Give a parameter or a buffer other values, of another shape. Every reference to it sees them.

    A loss that somebody still holds keeps the node alive that accumulates the gradient of a parameter, in its old
    shape. Torch drops that node if the type of the tensor changes; so it changes, and changes back.
    """
    tensor.grad = None
    other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
    if tensor.requires_grad:
        tensor.data = torch.empty(0, dtype=other, device=tensor.device)
    tensor.data = values


def _memory_format(tensor: Tensor) -> torch.memory_format:
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == dimensions and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format

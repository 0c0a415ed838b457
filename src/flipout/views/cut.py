"""A cut: what is left of a weight in a network that was shrunk."""

from __future__ import annotations

import torch
from torch import Tensor

from .positions import Positions
from .view import View

Indices = tuple[Tensor | None, ...]


class Cut(View):
    """What is left of an original tensor: for each dimension the indices that are there."""

    def take(self, tensor: Tensor) -> Tensor:
        return take(tensor, self.positions)

    def gather(self, local: Tensor) -> Tensor:
        """The original tensor; what was removed is 0."""
        full = torch.zeros(self.positions.shape, dtype=local.dtype, device=local.device)
        put(full, local, self.positions)
        return full


def take(full: Tensor, where: Positions) -> Tensor:
    """The elements of a tensor at some positions, in the same memory format."""
    held = full
    for dimension, index in enumerate(where.indices):
        if index is not None:
            held = held.index_select(dimension, index.to(full.device))
    return held.contiguous(memory_format=_memory_format(full))


def put(full: Tensor, held: Tensor, where: Positions) -> None:
    """Write elements back into the tensor that they were taken from, in place."""
    cut = [(dimension, index) for dimension, index in enumerate(where.indices) if index is not None]
    if not cut:
        full.copy_(held)
        return
    (dimension, index), *others = cut
    index = index.to(full.device)
    if others:
        rest = tuple(None if number == dimension else each for number, each in enumerate(where.indices))
        slab = full.index_select(dimension, index)
        put(slab, held, Positions(slab.shape, rest))
        held = slab
    full.index_copy_(dimension, index, held)


def _memory_format(tensor: Tensor) -> torch.memory_format:
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == dimensions and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format

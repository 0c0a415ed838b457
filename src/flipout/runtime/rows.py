"""How a layer's tensors are laid out for kernels: as matrices where memory allows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..layers import Layer
from ..numerics import rows_at_once
from ..positions import Positions


@dataclass(eq=False)
class Rows:
    """A layer's weight and mask as matrices where memory allows it, so that one compiled loop serves every shape."""

    weight: Tensor
    mask: Tensor
    positions: Positions
    starts: Tensor
    """The number of the first element of each row in the original tensor, as a column."""
    offsets: Tensor
    """The element numbers relative to the start of a row: of everything under one index of the first dimension."""
    blocks: list[slice]
    """Ranges of rows that are processed together in eager mode."""
    kind: tuple[object, ...]
    """What a compiled loop is specialised for. Torch specialises on sizes of 1, so these are kinds of their own."""

    def still_valid(self, layer: Layer) -> bool:
        """Whether the layer's tensors are where they were."""
        weight, mask = layer.local, layer.mask
        same = weight.data_ptr() == self.weight.data_ptr() and mask.data_ptr() == self.mask.data_ptr()
        return same and weight.dtype == self.weight.dtype and layer.positions is self.positions

    def like(self, tensor: Tensor) -> Tensor:
        """Another tensor of the layer in the same layout.

        `.data` hides from the compiler that it is a view, which would add guards on its base.
        """
        return tensor.data if tensor.ndim == self.weight.ndim else tensor.data.view(self.weight.shape).data


def lay_out(layer: Layer, contiguous: bool) -> Rows:
    """Lay out a layer; `contiguous` is whether its other tensors are contiguous too."""
    weight, mask = layer.local.data, layer.bytes.data
    if contiguous and weight.is_contiguous() and mask.is_contiguous():
        shape = (len(weight) if weight.ndim > 1 else 1, -1)
        weight, mask = weight.view(shape).data, mask.view(shape).data
    width, device = weight.shape[1:].numel(), weight.device
    step = rows_at_once(weight)
    where = layer.positions
    starts = where.starts(device)
    offsets = numbers(width, device) if where.whole else where.offsets(device)
    if weight.ndim == 1:  # a vector that is not contiguous: each element is a row
        starts, offsets = where.offsets(device), numbers(1, device)
    return Rows(
        weight=weight,
        mask=mask,
        positions=where,
        starts=starts.view(-1, *[1] * (weight.ndim - 1)).data,
        offsets=offsets if weight.ndim == 2 else offsets.view(weight.shape[1:]).data,
        blocks=[slice(start, start + step) for start in range(0, len(weight), step)],
        kind=(weight.dtype, device.type, *(min(size, 2) for size in weight.shape)),
    )


@cache
def numbers(width: int, device: torch.device) -> Tensor:
    """0, 1, 2, ...; all pruners of a process share them."""
    return torch.arange(width, dtype=torch.int32, device=device)

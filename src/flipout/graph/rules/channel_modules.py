"""Small modules that move channels about where a smaller network needs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Part(nn.Module):
    """A module of ours, which says what it does along one axis."""

    index: Tensor

    def __init__(self, axis: int, index: Tensor) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("index", index)

    def extra_repr(self) -> str:
        return f"axis={self.axis}, channels={len(self.index)}"


class Select(Part):
    """Takes some of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.axis, self.index)


class Spread(Part):
    """Puts channels among zeros; the index of a zero is one past the last channel."""

    def forward(self, x: Tensor) -> Tensor:
        after = (0, 0) * (x.ndim - 1 - self.axis) + (0, 1)
        return nn.functional.pad(x, after).index_select(self.axis, self.index)


class AddInto(Part):
    """Adds a branch into some channels of what has them all."""

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x.index_add(self.axis, self.index, branch)


class Shift(nn.Module):
    """Adds the same numbers to every example."""

    shift: Tensor

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.shift.shape)}"

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


PARTS = (Part, Shift)


def positions(held: Tensor, wanted: Tensor) -> Tensor:
    """Where the wanted channels stand among those held, which are flags over the same channels."""
    return (torch.cumsum(held, 0) - 1)[wanted]

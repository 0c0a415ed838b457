"""The channels of a tensor, what is known about them, and the modules that select, scatter and shift them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Channels:
    """The channels of a tensor along one axis. If the axis is None, nothing is known about the tensor.

    Args:
        axis: the axis of the channels.
        constants: in float64, the value of each channel that has the same value at every position and for every input;
            NaN for each channel that varies.
        input_dependent: True for each channel whose value depends on the input of the network, or on numbers that are
            not analysed as channels, such as parameters. A channel may be neither constant nor input-dependent: after a
            convolution with zero padding, a constant has other values at the borders.
    """

    axis: int | None
    constants: Tensor
    input_dependent: Tensor

    @staticmethod
    def known(axis: int | None, constants: Tensor, input_dependent: Tensor) -> Channels:
        """Return channels with these constants. Constants that are not finite count as varying."""
        constants = torch.where(constants.isfinite(), constants, torch.nan)
        return Channels(axis, constants, input_dependent & constants.isnan())

    @staticmethod
    def unknown(axis: int | None, size: int, input_dependent: bool) -> Channels:
        """Return channels that may have any value."""
        return Channels(axis, torch.full((size,), torch.nan, dtype=torch.float64), torch.full((size,), input_dependent))

    @property
    def varies(self) -> Tensor:
        return self.constants.isnan()

    def along(self, axis: int | None, size: int) -> Channels:
        """Return the channels of the same tensor along an axis; nothing is known along any other than its own."""
        return self if axis == self.axis else Channels.unknown(axis, size, bool(self.input_dependent.any()))


def broadcast_channels(vector: Tensor, axis: int, dimensions: int) -> Tensor:
    """Reshape one number per channel so that it broadcasts to one example, which has that many axes.

    The axis of the channels is that in a batch; an example has no batch axis.
    """
    return vector.reshape(-1, *(1,) * (dimensions - axis))


def channel_positions(remaining: Tensor, wanted: Tensor) -> Tensor:
    """Return the positions of the wanted channels among the remaining ones; both are flags over all channels."""
    return (torch.cumsum(remaining, 0) - 1)[wanted]


class ChannelModule(nn.Module):
    """A module that moves channels along one axis by an index."""

    index: Tensor

    def __init__(self, axis: int, index: Tensor) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("index", index)

    def extra_repr(self) -> str:
        return f"axis={self.axis}, channels={len(self.index)}"


class SelectChannels(ChannelModule):
    """Selects the channels at the index."""

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.axis, self.index)


class ScatterChannels(ChannelModule):
    """Places channels among channels of zeros; the index of a zero channel is the number of channels of the input."""

    def forward(self, x: Tensor) -> Tensor:
        one_zero_channel = (0, 0) * (x.ndim - 1 - self.axis) + (0, 1)
        return nn.functional.pad(x, one_zero_channel).index_select(self.axis, self.index)


class AddToChannels(ChannelModule):
    """Adds a tensor with few channels to some channels of another tensor."""

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x.index_add(self.axis, self.index, branch)


class AddConstant(nn.Module):
    """Adds the same numbers to every example."""

    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.constant.shape)}"

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constant


INSERTED_MODULES = (ChannelModule, AddConstant)

"""Small modules that compaction inserts to select, scatter or shift channels."""

from __future__ import annotations

from torch import Tensor, nn


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

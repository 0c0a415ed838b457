"""The channels of a weight that no kept weight reads or writes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .layer_kinds import is_transposed


class ChannelTally(NamedTuple):
    """How many input and output channels a weight has, and how many of them are dead. None if it has no channels."""

    dead_inputs: int | None = None
    inputs: int | None = None
    dead_outputs: int | None = None
    outputs: int | None = None


def channels_of(mask: Tensor, module: nn.Module) -> ChannelTally:
    """Count the channels of a whole weight, from its mask. A bias and an embedding have none."""
    convolution = isinstance(module, _ConvNd)
    if not mask.numel() or not (convolution or (mask.ndim == 2 and not isinstance(module, nn.Embedding))):
        return ChannelTally()
    groups = module.groups if isinstance(module, _ConvNd) else 1
    alive = mask.reshape(groups, mask.shape[0] // groups, mask.shape[1], -1).any(-1)
    if is_transposed(module) or isinstance(module, _ConvTransposeNd):  # stored with the input channels first
        alive = alive.transpose(1, 2)
    reached, read = alive.any(2), alive.any(1)
    return ChannelTally(int((~read).sum()), read.numel(), int((~reached).sum()), reached.numel())

"""What is known of the channels of a tensor, and what an operation says about those that it reads and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from .rebuild import Builder


@dataclass(frozen=True)
class Channels:
    """The channels of a tensor along an axis; an axis of None is a tensor of which nothing is known.

    `constants` has in float64 the value that a channel has everywhere and for every input, and NaN where it varies.
    `carries` is True where the value depends on the input of the network, or on numbers of its own that are not seen as
    channels. A channel may do neither: a constant that goes through a convolution with zero padding differs at the
    borders.
    """

    axis: int | None
    constants: Tensor
    carries: Tensor

    @property
    def varies(self) -> Tensor:
        return self.constants.isnan()

    def along(self, axis: int | None, size: int) -> Channels:
        """The same tensor seen along another axis, along which nothing is known of it."""
        return self if axis == self.axis else unknown(axis, size, bool(self.carries.any()))


def unknown(axis: int | None, size: int, carries: bool) -> Channels:
    """Channels that may have any value."""
    return Channels(axis, torch.full((size,), torch.nan, dtype=torch.float64), torch.full((size,), carries))


def known(axis: int | None, constants: Tensor, carries: Tensor) -> Channels:
    """Channels with these constants, as far as they are numbers."""
    constants = torch.where(constants.isfinite(), constants, torch.nan)
    return Channels(axis, constants, carries & constants.isnan())


def broadcast(vector: Tensor, axis: int, dimensions: int) -> Tensor:
    """One number per channel, to go with an example of so many axes, which lacks the first axis of a batch."""
    return vector.reshape(-1, *(1,) * (dimensions - axis))


class Rule:
    """How one operation treats channels. This one knows nothing: it reads all there is, and gives anything.

    Args:
        node: the operation.
        sources: the tensors that it reads.
        axes: for each, the axis along which it reads channels; None where it needs the whole tensor.
    """

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axes: Sequence[int | None]) -> None:
        self.node, self.sources, self.axes = node, tuple(sources), tuple(axes)

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        """What is known of the result."""
        # Without sources it is an input of the network, numbers of its own, or a call that may draw random ones.
        fresh = not self.sources
        return unknown(None, 1, fresh or any(bool(channels.carries.any()) for channels in inputs))

    def widen(self, needed: Tensor) -> Tensor:
        """The channels that the operation gives where these are needed."""
        return needed

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        """For each source the channels that are read to give those kept; None where it is not read at all."""
        return [torch.ones_like(channels.carries) for channels in inputs]

    def matters(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        """The same without regard to what can be built: only channels that the wanted ones depend on."""
        return self.needs(inputs, output, wanted)

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        """The operation in the smaller network."""
        return build.copy(self.node)


class Pointwise(Rule):
    """One tensor in, each channel by itself: activations, pooling, norms. Subclasses say what becomes of constants."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None) -> None:
        super().__init__(node, [source], [axis])

    def apply(self, constants: Tensor) -> Tensor:
        """What becomes of the constants, with NaN where there is none."""
        return constants

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        if channels.axis is None:
            return channels
        return known(channels.axis, self.apply(channels.constants), channels.carries)

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [kept]

    def matters(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        return [wanted & output.varies]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        return build.copy(self.node, {self.sources[0]: build.take(self, 0, kept)})

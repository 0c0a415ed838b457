"""Operations that treat each channel by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..channels import Channels, Pointwise, Rule, known

if TYPE_CHECKING:
    from ..rebuild import Builder


class Flatten(Rule):
    """All but the first axis become one: a channel gives as many features as it has positions."""

    def __init__(self, node: fx.Node, source: fx.Node, positions: int) -> None:
        super().__init__(node, [source], [1])
        self.positions = positions

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        constants, carries = (t.repeat_interleave(self.positions) for t in (channels.constants, channels.carries))
        return known(1, constants, carries)

    def widen(self, needed: Tensor) -> Tensor:
        return self._channels(needed).repeat_interleave(self.positions)

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [self._channels(kept)]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        source = build.take(self, 0, self._channels(kept))
        return build.graph.call_function(torch.flatten, (source, 1))

    def _channels(self, features: Tensor) -> Tensor:
        return features.reshape(-1, self.positions).any(1)


class Activation(Pointwise):
    """Any function of one number; a constant goes through the function itself."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None, function: Callable[[Tensor], Any]) -> None:
        super().__init__(node, source, axis)
        self.function = function

    def apply(self, constants: Tensor) -> Tensor:
        result = self.function(constants)
        return torch.where(constants.isnan(), torch.nan, result)


class Window(Pointwise):
    """Pooling and means over positions. With zeros at the borders only the constant zero stays one."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None, *, zeros: bool) -> None:
        super().__init__(node, source, axis)
        self.zeros = zeros

    def apply(self, constants: Tensor) -> Tensor:
        return torch.where(constants == 0, constants, torch.nan) if self.zeros else constants


class Unsqueeze(Pointwise):
    """The same with axes of one behind."""

    def __init__(self, node: fx.Node, source: fx.Node, axes: int) -> None:
        super().__init__(node, source, 1)
        self.added = axes

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        index = (..., *(None,) * self.added)
        return build.graph.call_function(operator.getitem, (build.take(self, 0, kept), index))  # type: ignore[arg-type]


class Size(Rule):
    """Asks for a size other than the number of channels: reads the tensor, but no channel of it."""

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [torch.zeros_like(channels.carries) for channels in inputs]

"""Operations that bring tensors together, and flatten, which makes a channel into many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from .channels import Channels, Pointwise, Rule, known
from .parts import AddInto, Shift, Spread, positions

if TYPE_CHECKING:
    from .rebuild import Builder


class Sum(Rule):
    """Two tensors of one shape. Each gives only the channels in which it varies, the constants are added at the end."""

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axis: int, dimensions: int) -> None:
        super().__init__(node, sources, [axis] * len(sources))
        self.axis, self.dimensions = axis, dimensions

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        first, second = inputs
        return known(self.axis, first.constants + second.constants, first.carries | second.carries)

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        needs = [kept & channels.varies for channels in inputs]
        if not any(need.any() for need in needs):
            return [needs[0], None]
        return [need if need.any() else None for need in needs]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        needs = self.needs(inputs, output, kept)
        held = [build.held(self, k) & kept if need is not None else None for k, need in enumerate(needs)]
        shift = torch.zeros(int(kept.sum()), dtype=torch.float64)
        for channels, own in zip(inputs, held, strict=True):
            missing = kept if own is None else kept & ~own
            shift[positions(kept, missing)] += channels.constants[missing]
        # The widest goes first: the others are added into it.
        order = sorted((k for k, own in enumerate(held) if own is not None), key=lambda k: -int(held[k].sum()))  # type: ignore[union-attr]
        result: fx.Node | None = None
        for k in order:
            own = held[k]
            assert own is not None
            if not own.any() and result is not None:
                continue
            operand = build.take(self, k, own) if own.any() else build.source(self, k)
            if result is None:
                result = operand if own.equal(kept) else self._spread(build, operand, own, kept)
            elif own.equal(kept):
                result = build.graph.call_function(torch.add, (result, operand))
            else:
                result = build.part(self.node, AddInto(self.axis, positions(kept, own)), result, operand)
        assert result is not None
        if shift.any():
            result = build.part(self.node, Shift(shift, self.axis, self.dimensions), result)
        return result

    def _spread(self, build: Builder, operand: fx.Node, own: Tensor, kept: Tensor) -> fx.Node:
        index = torch.full((int(kept.sum()),), max(1, int(own.sum())))
        index[positions(kept, own)] = torch.arange(int(own.sum()))
        return build.part(self.node, Spread(self.axis, index), operand)


class Together(Rule):
    """Channels that meet one by one in any other way, such as a product: where one is kept, so are the others.

    A source with a single channel is read whole.
    """

    def __init__(
        self, node: fx.Node, sources: Sequence[fx.Node], axes: Sequence[int | None], axis: int, product: bool
    ) -> None:
        super().__init__(node, sources, axes)
        self.axis, self.product = axis, product

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        whole = torch.full((1,), torch.nan, dtype=torch.float64)
        first, second = (channels.constants if channels.axis is not None else whole for channels in inputs)
        constants = first * second
        if self.product:
            constants = torch.where((first == 0) | (second == 0), 0.0, constants)
        else:
            constants = torch.full_like(constants, torch.nan)
        carries = inputs[0].carries | inputs[1].carries
        return known(self.axis, constants, carries)

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [kept if channels.axis is not None else torch.ones_like(channels.carries) for channels in inputs]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        return build.copy(self.node, {source: build.take(self, k, kept) for k, source in enumerate(self.sources)})


class Concatenation(Rule):
    """Channels one after another; a source of which none is needed is left out."""

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axis: int, sizes: Sequence[int]) -> None:
        super().__init__(node, sources, [axis] * len(sources))
        self.axis, self.sizes = axis, list(sizes)

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        constants = torch.cat([channels.constants for channels in inputs])
        return known(self.axis, constants, torch.cat([channels.carries for channels in inputs]))

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [need if need.any() else None for need in kept.split(self.sizes)]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        pieces = [build.take(self, k, need) for k, need in enumerate(kept.split(self.sizes)) if need.any()]
        return build.graph.call_function(torch.cat, (pieces, self.axis)) if len(pieces) > 1 else pieces[0]


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


class Size(Rule):
    """Asks for a size other than the number of channels: reads the tensor, but no channel of it."""

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [torch.zeros_like(channels.carries) for channels in inputs]

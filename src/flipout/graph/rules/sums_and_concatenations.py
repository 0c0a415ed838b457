"""Operations that bring tensors together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from ..channels import Channels, Rule, broadcast, known
from .channel_modules import AddInto, Shift, Spread, positions

if TYPE_CHECKING:
    from ..rebuild import Builder


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
        given: list[tuple[int, Tensor]] = []
        shift = torch.zeros(1, dtype=torch.float64)
        for k, need in enumerate(self.needs(inputs, output, kept)):
            own = torch.zeros_like(kept) if need is None else build.held(self, k) & kept
            if need is not None:
                given.append((k, own))
            shift = shift + self._constants(build, k, inputs[k], kept & ~own)
        given.sort(key=lambda pair: -int(pair[1].sum()))
        # The widest goes first, and the other is added into it.
        number, own = given[0]
        result = build.take(self, number, own) if own.any() else build.source(self, number)
        if not own.equal(kept):
            zero = int((own if own.any() else build.held(self, number)).sum())
            index = torch.full((int(kept.sum()),), zero)
            index[positions(kept, own)] = torch.arange(int(own.sum()))
            result = build.part(self.node, Spread(self.axis, index), result)
        for number, own in given[1:]:
            branch = build.take(self, number, own)
            if own.equal(kept):
                result = build.graph.call_function(torch.add, (result, branch))
            else:
                result = build.part(self.node, AddInto(self.axis, positions(kept, own)), result, branch)
        if shift.any():
            own_axis = self.axis - self.dimensions  # counted from the end, as a constant may lack the axes before it
            result = build.part(self.node, Shift(shift.index_select(own_axis, kept.nonzero().flatten())), result)
        return result

    def _constants(self, build: Builder, number: int, channels: Channels, missing: Tensor) -> Tensor:
        """What a source has in the channels that are not taken from it, as an example without them."""
        maps = build.maps(self, number)
        values = broadcast(channels.constants, self.axis, self.dimensions - 1) if maps is None else maps
        return torch.where(broadcast(missing, self.axis, self.dimensions - 1), values, 0.0)


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
        return [need if need.any() else None for need in torch.split(kept, self.sizes)]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        pieces = [build.take(self, k, need) for k, need in enumerate(torch.split(kept, self.sizes)) if need.any()]
        return build.graph.call_function(torch.cat, (pieces, self.axis)) if len(pieces) > 1 else pieces[0]

"""Rules of operations that combine tensors: sums, products and other arithmetic, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, fx

from ..channels import AddConstant, AddToChannels, Channels, ScatterChannels, broadcast_channels, channel_positions
from .base import Call, Rule
from .channelwise import recognize_activation

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder


class SumRule(Rule):
    """The sum of two tensors of one shape. Of each source only the varying channels are added, constants at the end."""

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axis: int, dimensions: int) -> None:
        super().__init__(node, sources, [axis] * len(sources))
        self.axis, self.dimensions = axis, dimensions

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        first, second = inputs
        dependent = first.input_dependent | second.input_dependent
        return Channels.known(self.axis, first.constants + second.constants, dependent)

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        required = [kept & channels.varies for channels in inputs]
        if not any(flags.any() for flags in required):
            return [required[0], None]
        return [flags if flags.any() else None for flags in required]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        terms: list[tuple[int, Tensor]] = []
        shift = torch.zeros(1, dtype=torch.float64)
        for number, required in enumerate(self.required_inputs(inputs, output, kept)):
            own = torch.zeros_like(kept) if required is None else build.remaining(self, number) & kept
            if required is not None:
                terms.append((number, own))
            shift = shift + self._constants(build, number, inputs[number], kept & ~own)
        # The term with the most channels comes first, and the other is added to it.
        terms.sort(key=lambda term: -int(term[1].sum()))
        number, own = terms[0]
        result = build.select(self, number, own) if own.any() else build.rebuilt_source(self, number)
        if not own.equal(kept):
            zero_index = int((own if own.any() else build.remaining(self, number)).sum())
            index = torch.full((int(kept.sum()),), zero_index)
            index[channel_positions(kept, own)] = torch.arange(int(own.sum()))
            result = build.insert(self.node, ScatterChannels(self.axis, index), result)
        for number, own in terms[1:]:
            branch = build.select(self, number, own)
            if own.equal(kept):
                result = build.graph.call_function(torch.add, (result, branch))
            else:
                module = AddToChannels(self.axis, channel_positions(kept, own))
                result = build.insert(self.node, module, result, branch)
        if shift.any():
            axis_from_end = self.axis - self.dimensions  # a constant may lack the axes before it
            constant = shift.index_select(axis_from_end, kept.nonzero().flatten())
            result = build.insert(self.node, AddConstant(constant), result)
        return result

    def _constants(self, build: GraphBuilder, number: int, channels: Channels, missing: Tensor) -> Tensor:
        """Return the values of a source in the channels that are not read from it; zero in all others."""
        example_value, dimensions = build.example_value(self, number), self.dimensions - 1
        if example_value is None:
            example_value = broadcast_channels(channels.constants, self.axis, dimensions)
        return torch.where(broadcast_channels(missing, self.axis, dimensions), example_value, 0.0)


class ElementwiseRule(Rule):
    """Two tensors combined channel by channel in any other way. A channel that is kept in one is kept in both.

    A source with a single channel, which is broadcast, is read as a whole.
    """

    def __init__(
        self, node: fx.Node, sources: Sequence[fx.Node], axes: Sequence[int | None], axis: int, is_product: bool
    ) -> None:
        super().__init__(node, sources, axes)
        self.axis, self.is_product = axis, is_product

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        unknown = torch.full((1,), torch.nan, dtype=torch.float64)
        first, second = (channels.constants if channels.axis is not None else unknown for channels in inputs)
        constants = first * second
        if self.is_product:
            constants = torch.where((first == 0) | (second == 0), 0.0, constants)
        else:
            constants = torch.full_like(constants, torch.nan)
        return Channels.known(self.axis, constants, inputs[0].input_dependent | inputs[1].input_dependent)

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [kept if channels.axis is not None else torch.ones_like(channels.input_dependent) for channels in inputs]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        selected = {source: build.select(self, number, kept) for number, source in enumerate(self.sources)}
        return build.copy(self.node, selected)


class ConcatenationRule(Rule):
    """Tensors concatenated along their channels. A source without needed channels is left out."""

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axis: int, sizes: Sequence[int]) -> None:
        super().__init__(node, sources, [axis] * len(sources))
        self.axis, self.sizes = axis, list(sizes)

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        constants = torch.cat([channels.constants for channels in inputs])
        return Channels.known(self.axis, constants, torch.cat([channels.input_dependent for channels in inputs]))

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [flags if flags.any() else None for flags in torch.split(kept, self.sizes)]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        flags = enumerate(torch.split(kept, self.sizes))
        pieces = [build.select(self, number, each) for number, each in flags if each.any()]
        return build.graph.call_function(torch.cat, (pieces, self.axis)) if len(pieces) > 1 else pieces[0]


def recognize_arithmetic(call: Call, *, kind: Literal["sum", "product", "other"]) -> Rule | None:
    """Recognize arithmetic of two tensors, or of a tensor and a number."""
    node, sources = call.node, call.sources
    if len(sources) != 2 or list(node.args) != sources or node.kwargs:
        return recognize_activation(call)
    shape, shapes = call.shapes[node], [call.shapes.get(source) for source in sources]
    axes = {call.channels[source].axis for source in sources} - {None}
    if len(axes) != 1 or any(other is None or len(other) != len(shape) for other in shapes):
        return None
    (axis,) = axes
    assert axis is not None
    # A tensor that does not come from the inputs has no batch axis, even if its first axis has the same size.
    same_shape = all(other == shape for other in shapes) and call.batched >= set(sources)
    if kind == "sum" and same_shape:
        return SumRule(node, sources, axis, len(shape))
    own_axes = [axis if other is not None and other[axis] == shape[axis] else None for other in shapes]
    return ElementwiseRule(node, sources, own_axes, axis, kind == "product")


def recognize_concatenation(call: Call) -> Rule | None:
    """Recognize a concatenation along the channels."""
    tensors, dimension = call.argument("tensors", 0), call.argument("dim", 1, 0)
    if not isinstance(tensors, list | tuple) or not isinstance(dimension, int):
        return None
    axis = dimension % len(call.shapes[call.node])
    sources = [source for source in tensors if isinstance(source, fx.Node)]
    if {call.channels[source].axis for source in sources} - {None} != {axis}:
        return None
    return ConcatenationRule(call.node, sources, axis, [call.shapes[source][axis] for source in sources])

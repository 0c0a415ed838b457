"""One call of a traced graph, the interface of all rules, and the two rules that others build on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from ..channels import Channels

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder


@dataclass(frozen=True)
class Call:
    """A call of a module, a function or a method.

    Args:
        node: the call in the graph.
        module: the module that is called; None for a function or a method.
        shapes: the shape of every tensor of the graph, for the example input.
        channels: what is known about every tensor before this call.
        batched: the nodes that are computed from the inputs of the network, so that their first axis is the batch.
    """

    node: fx.Node
    module: nn.Module | None
    shapes: Mapping[fx.Node, tuple[int, ...]]
    channels: Mapping[fx.Node, Channels]
    batched: AbstractSet[fx.Node]

    @property
    def sources(self) -> list[fx.Node]:
        """The nodes that the call reads, each once."""
        return self.node.all_input_nodes

    @property
    def source(self) -> fx.Node:
        """The first node that the call reads."""
        return self.node.all_input_nodes[0]

    @property
    def axis(self) -> int | None:
        """The axis of the source's channels."""
        return self.channels[self.source].axis

    @property
    def dimensions(self) -> int:
        """The number of axes of the source."""
        return len(self.shapes[self.source])

    @property
    def starts_with_source(self) -> bool:
        """Whether the source is the first positional argument."""
        return self.node.args[:1] == (self.source,)

    def argument(self, name: str, position: int, default: Any = None) -> Any:
        """Return an argument that may be passed by name or by position."""
        return self.node.kwargs.get(name, self.node.args[position] if len(self.node.args) > position else default)


class Rule:
    """How one operation treats channels.

    This base class is the rule of an opaque operation: it reads whole tensors, and nothing is known about its result.

    Args:
        node: the operation.
        sources: the tensors that it reads.
        axes: for each source, the axis along which its channels are read; None if the whole tensor is read.
    """

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], axes: Sequence[int | None]) -> None:
        self.node, self.sources, self.axes = node, tuple(sources), tuple(axes)

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        """Return what is known about the result, given what is known about the sources."""
        # Without sources it is an input of the network, a parameter, or a call that may draw random numbers.
        dependent = not self.sources or any(bool(channels.input_dependent.any()) for channels in inputs)
        return Channels.unknown(None, 1, dependent)

    def expand(self, needed: Tensor) -> Tensor:
        """Return the channels that the rebuilt operation produces where these are needed, such as whole groups."""
        return needed

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        """Return for each source the channels that the rebuilt operation reads; None if it does not read the source."""
        return [torch.ones_like(channels.input_dependent) for channels in inputs]

    def influencing_inputs(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        """Return for each source the channels that the wanted ones depend on, whether or not a rebuild can use that."""
        return self.required_inputs(inputs, output, wanted)

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        """Add the operation, with the kept channels only, to the compacted graph."""
        return build.copy(self.node)


class ChannelwiseRule(Rule):
    """One source, and each channel of the result depends on the same channel of the source only.

    Subclasses override `apply`, which says what becomes of constants.
    """

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None) -> None:
        super().__init__(node, [source], [axis])

    def apply(self, constants: Tensor) -> Tensor:
        """Return the constants of the result; NaN where a channel varies."""
        return constants

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        if channels.axis is None:
            return channels
        return Channels.known(channels.axis, self.apply(channels.constants), channels.input_dependent)

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [kept]

    def influencing_inputs(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        return [wanted & output.varies]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        return build.copy(self.node, {self.sources[0]: build.select(self, 0, kept)})

"""One call of a traced graph, with everything that decides which rule it follows."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from .channels import Channels


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
    def source_comes_first(self) -> bool:
        """Whether the source is the first positional argument."""
        return self.node.args[:1] == (self.source,)

    def argument(self, name: str, position: int, default: Any = None) -> Any:
        """Return an argument that may be passed by name or by position."""
        return self.node.kwargs.get(name, self.node.args[position] if len(self.node.args) > position else default)

"""Rules of operations that change or read the shape of a tensor: flatten, unsqueeze, size."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from ..channels import Channels
from .base import Call, ChannelwiseRule, Rule

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder


class FlattenRule(Rule):
    """Flattens all axes but the first. A channel becomes as many features as it has positions."""

    def __init__(self, node: fx.Node, source: fx.Node, positions: int) -> None:
        super().__init__(node, [source], [1])
        self.positions = positions

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        tensors = channels.constants, channels.input_dependent
        return Channels.known(1, *(tensor.repeat_interleave(self.positions) for tensor in tensors))

    def expand(self, needed: Tensor) -> Tensor:
        return self._channels(needed).repeat_interleave(self.positions)

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [self._channels(kept)]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        source = build.select(self, 0, self._channels(kept))
        return build.graph.call_function(torch.flatten, (source, 1))

    def _channels(self, features: Tensor) -> Tensor:
        return features.reshape(-1, self.positions).any(1)


class UnsqueezeRule(ChannelwiseRule):
    """Appends axes of size one."""

    def __init__(self, node: fx.Node, source: fx.Node, new_axes: int) -> None:
        super().__init__(node, source, 1)
        self.new_axes = new_axes

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        index = (..., *(None,) * self.new_axes)
        return build.graph.call_function(operator.getitem, (build.select(self, 0, kept), index))  # type: ignore[arg-type]


class SizeQueryRule(Rule):
    """Reads a size other than the number of channels. It needs the tensor, but none of its channels."""

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [torch.zeros_like(channels.input_dependent) for channels in inputs]


def recognize_flatten(call: Call) -> Rule | None:
    """Recognize an operation that flattens all axes but the first, whatever it is called."""
    before, after = call.shapes[call.source], call.shapes[call.node]
    if call.axis != 1 or after != (before[0], math.prod(before[1:])):
        return None
    return FlattenRule(call.node, call.source, math.prod(before[2:]))


def recognize_reshape(call: Call) -> Rule | None:
    """Recognize a reshape that flattens all axes but the first, or that appends axes of size one."""
    if not call.starts_with_source:
        return None
    return recognize_flatten(call) or _recognize_unsqueeze(call)


def recognize_indexing(call: Call) -> Rule | None:
    """Recognize `x[:, :, None, None]` and the like."""
    if not call.starts_with_source:
        return None
    index = call.node.args[1] if isinstance(call.node.args[1], tuple) else (call.node.args[1],)
    return _recognize_unsqueeze(call) if all(part in (None, ..., slice(None)) for part in index) else None


def recognize_size_query(call: Call) -> Rule | None:
    """Recognize `x.size(0)`, `x.shape[2]` and the like, if they do not ask for the number of channels."""
    node, axis = call.node, call.axis
    if axis is None or not (node.target == "size" or node.args[1:] == ("shape",)):
        return None
    indexed = [user.args[1] if user.target is operator.getitem else None for user in node.users]
    asked = [node.args[1]] if node.target == "size" and len(node.args) > 1 else indexed
    if not all(isinstance(item, int) and item % call.dimensions != axis for item in asked):
        return None
    return SizeQueryRule(node, [call.source], [axis])


def _recognize_unsqueeze(call: Call) -> Rule | None:
    before, after = call.shapes[call.source], call.shapes[call.node]
    new_axes = len(after) - len(before)
    if call.axis != 1 or new_axes < 1 or after != before + (1,) * new_axes:
        return None
    return UnsqueezeRule(call.node, call.source, new_axes)

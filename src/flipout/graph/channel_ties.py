"""Which channels of a network live and die together: those that a sum, a product or a grouped convolution ties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from .analysis import ChannelAnalysis
from .rules.base import ChannelwiseRule, Rule
from .rules.combinations import ConcatenationRule, ElementwiseRule, SumRule
from .rules.layers import WeightedLayerRule
from .rules.reshaping import FlattenRule, SizeQueryRule

FIXED = 0
"""The set of the channels that cannot be removed: inputs and outputs of the network, and what is not understood."""
NAMES_SIZES = {torch.reshape, "view", "reshape"}
"""Operations that name the sizes of their result, which may be written into the code of the network."""


class ChannelSets:
    """Sets of channels (union-find), filled by going through a graph once.

    Args:
        analysis: the rules of the graph.
        code_stays: whether the code of the network stays as it is, so that a reshape to a size that is written there
            fixes the channels.
    """

    def __init__(self, analysis: ChannelAnalysis, *, code_stays: bool = False) -> None:
        self._parents, self._code_stays = [FIXED], code_stays
        self._outputs: dict[fx.Node, list[int]] = {}
        self._inputs: dict[fx.Node, list[int]] = {}
        for node, rule in analysis.rules.items():
            sources = [
                self._read(self._outputs[source], axis == analysis.channels[source].axis and axis is not None, size)
                for source, axis, size in zip(rule.sources, rule.axes, analysis.source_sizes[node], strict=True)
            ]
            known = analysis.channels[node].axis is not None
            self._outputs[node] = self._result(rule, sources, len(analysis.channels[node].constants)) if known else []
            if not known and not isinstance(rule, SizeQueryRule):
                self._fix(sources)

    def __len__(self) -> int:
        return len(self._parents)

    def of(self, node: fx.Node) -> list[int]:
        """The sets of the channels of a tensor."""
        return [self._root(channel) for channel in self._outputs[node]]

    def inputs_of(self, layer: fx.Node) -> list[int] | None:
        """The sets of the inputs of a layer; None if it has groups."""
        inputs = self._inputs.get(layer)
        return None if inputs is None else [self._root(channel) for channel in inputs]

    def _read(self, channels: list[int], along: bool, size: int) -> list[int]:
        """The channels of a source as an operation reads them. If it reads another axis, it reads all of them."""
        if along:
            return channels
        self._fix([channels])
        return [FIXED] * size

    def _result(self, rule: Rule, sources: Sequence[list[int]], size: int) -> list[int]:
        """The channels of the result of an operation, which may tie those of its sources."""
        if isinstance(rule, WeightedLayerRule):
            return self._layer(rule, sources[0], size)
        if self._code_stays and _names_a_size(rule):
            self._fix(sources)
            return [FIXED] * size
        if isinstance(rule, FlattenRule):
            return [channel for channel in sources[0] for _ in range(rule.positions)]
        if isinstance(rule, ConcatenationRule):
            return [channel for each in sources for channel in each]
        if isinstance(rule, ChannelwiseRule):
            return sources[0]
        if isinstance(rule, SumRule | ElementwiseRule):
            whole = [each for each in sources if len(each) == size]
            for each in whole[1:]:
                for one, other in zip(whole[0], each, strict=True):
                    self._tie(one, other)
            return whole[0]
        self._fix(sources)
        return [FIXED] * size

    def _layer(self, rule: WeightedLayerRule, inputs: list[int], size: int) -> list[int]:
        outputs = list(range(len(self._parents), len(self._parents) + size))
        self._parents += outputs
        if rule.groups == 1:
            self._inputs[rule.node] = inputs
            return outputs
        for group in range(rule.groups):
            first, *others = (*_of_group(outputs, group, rule.groups), *_of_group(inputs, group, rule.groups))
            for other in others:
                self._tie(first, other)
        return outputs

    def _fix(self, sources: Iterable[list[int]]) -> None:
        for channels in sources:
            for channel in channels:
                self._tie(FIXED, channel)

    def _tie(self, one: int, other: int) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        self._parents[high] = low  # so that the root of what is fixed is FIXED

    def _root(self, channel: int) -> int:
        while self._parents[channel] != channel:
            self._parents[channel] = self._parents[self._parents[channel]]
            channel = self._parents[channel]
        return channel


def _of_group(channels: Sequence[int], group: int, groups: int) -> Sequence[int]:
    size = len(channels) // groups
    return channels[group * size : (group + 1) * size]


def _names_a_size(rule: Rule) -> bool:
    """Whether a reshape names a size of its result, instead of taking all from the tensor itself."""
    node = rule.node
    sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
    taken = bool(sizes) and all(isinstance(size, fx.Node) or size == -1 for size in sizes)
    return node.target in NAMES_SIZES and not (taken and isinstance(rule, FlattenRule))

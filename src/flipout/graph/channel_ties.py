"""Which channels of a network live and die together: those that a sum, a product or a grouped convolution ties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from ..modules import unwrapped
from .live_masks import first_names
from .live_paths import AnalyzedNetwork, analyze_network
from .rules.base_rules import ChannelwiseRule, Rule
from .rules.combinations import ConcatenationRule, ElementwiseRule, SumRule
from .rules.layers_with_weights import WeightedLayerRule
from .rules.reshaping import FlattenRule, SizeQueryRule

FIXED = 0
"""The set of the channels that cannot be removed: inputs and outputs of the network, and what is not understood."""


@dataclass(frozen=True)
class LayerChannels:
    """The sets that the channels of a layer belong to: for each output and each input the number of its set.

    `inputs` is None for a convolution with groups, whose inputs belong to the set of their group's outputs.
    """

    outputs: list[int]
    inputs: list[int] | None


@dataclass(frozen=True)
class ChannelTies:
    """The channels of every layer by the name of its weight, and what could not be followed."""

    layers: dict[str, LayerChannels]
    notes: tuple[str, ...]


@torch.no_grad()
def channel_ties(model: nn.Module, example: tuple[Tensor, ...]) -> ChannelTies:
    """Trace a network, and find which channels belong together. The network is not changed.

    Args:
        model: the network.
        example: the inputs of a call, with any batch size.
    """
    with torch.random.fork_rng(devices={each.device for each in example if each.is_cuda}):
        network = analyze_network(unwrapped(model), example)
    names = first_names(unwrapped(model))
    found = _Sets(network)
    layers = {
        names[network.weight_name(node)]: LayerChannels(
            found.roots(outputs), None if inputs is None else found.roots(inputs)
        )
        for node, (outputs, inputs) in found.layers.items()
        if network.weight_name(node) in names
    }
    return ChannelTies(layers, network.notes)


class _Sets:
    """Sets of channels (union-find), filled by going through a graph once."""

    def __init__(self, network: AnalyzedNetwork) -> None:
        self._parents = [FIXED]
        self.layers: dict[fx.Node, tuple[list[int], list[int] | None]] = {}
        analysis = network.analysis
        channels: dict[fx.Node, list[int]] = {}
        for node, rule in analysis.rules.items():
            sources = [
                self._read(channels[source], axis == analysis.channels[source].axis and axis is not None, size)
                for source, axis, size in zip(rule.sources, rule.axes, analysis.source_sizes[node], strict=True)
            ]
            known = analysis.channels[node].axis is not None
            channels[node] = self._result(rule, sources, len(analysis.channels[node].constants)) if known else []
            if not known and not isinstance(rule, SizeQueryRule):
                self._fix(sources)

    def roots(self, channels: Iterable[int]) -> list[int]:
        return [self._root(channel) for channel in channels]

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
            self.layers[rule.node] = outputs, inputs
            return outputs
        for group in range(rule.groups):
            tied = [*_part(outputs, group, rule.groups), *_part(inputs, group, rule.groups)]
            for other in tied[1:]:
                self._tie(tied[0], other)
        self.layers[rule.node] = outputs, None
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


def _part(channels: Sequence[int], group: int, groups: int) -> Sequence[int]:
    size = len(channels) // groups
    return channels[group * size : (group + 1) * size]

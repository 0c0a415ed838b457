"""Rebuild a traced network with the channels that are needed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from .analysis import ChannelAnalysis
from .channels import SelectChannels, channel_positions
from .copies import without_printed_errors
from .rules.base import Rule
from .tracing import TracedNetwork


class GraphBuilder:
    """Builds the compacted graph; the rules add their operations through it.

    Args:
        traced: the network; its modules are replaced by smaller ones.
        analysis: the rules and channels of its nodes.
        kept: the channels to keep of each node that is needed.
    """

    def __init__(self, traced: TracedNetwork, analysis: ChannelAnalysis, kept: Mapping[fx.Node, Tensor]) -> None:
        self.traced, self.analysis, self.kept = traced, analysis, kept
        self.graph = fx.Graph()
        self.rebuilt: dict[fx.Node, fx.Node] = {}

    def build(self) -> nn.Module:
        """Rebuild every node that is needed, in the order of the graph."""
        for node, rule in self.analysis.rules.items():
            if node in self.kept:
                inputs = self.analysis.inputs(rule)
                self.rebuilt[node] = rule.rebuild(self, inputs, self.analysis.channels[node], self.kept[node])
        self.graph.lint()
        compacted = fx.GraphModule(self.traced.model, self.graph, type(self.traced.model).__name__)
        return without_printed_errors(compacted)

    def rebuilt_source(self, rule: Rule, number: int) -> fx.Node:
        """Return a source of a rule in the compacted graph, with all its remaining channels."""
        return self.rebuilt[rule.sources[number]]

    def remaining(self, rule: Rule, number: int) -> Tensor:
        """Return which channels a source of a rule has in the compacted graph."""
        source, axis = rule.sources[number], rule.axes[number]
        if axis == self.analysis.channels[source].axis:
            return self.kept[source]
        return torch.ones(self.analysis.source_sizes[rule.node][number], dtype=torch.bool)

    def example_value(self, rule: Rule, number: int) -> Tensor | None:
        """Return the value of a source for one example, if the compacted network is for inputs of one size."""
        values = self.analysis.example_values
        return None if values is None else values.get(rule.sources[number])

    def select(self, rule: Rule, number: int, wanted: Tensor) -> fx.Node:
        """Return a source of a rule with exactly the wanted channels."""
        node, axis, remaining = self.rebuilt_source(rule, number), rule.axes[number], self.remaining(rule, number)
        if axis is None or remaining.equal(wanted):
            return node
        return self.insert(rule.node, SelectChannels(axis, channel_positions(remaining, wanted)), node)

    def copy(self, node: fx.Node, sources: Mapping[fx.Node, fx.Node] | None = None) -> fx.Node:
        """Copy a node of the traced graph; `sources` overrides what its sources have become."""
        here = {**self.rebuilt, **(sources or {})}
        return self.graph.node_copy(node, lambda old: here[old])

    def replace(self, node: fx.Node, source: fx.Node, module: nn.Module) -> fx.Node:
        """Call another module under the name of the one that the node called."""
        self.traced.model.set_submodule(str(node.target), module)
        return self.graph.call_module(str(node.target), (source,))

    def insert(self, node: fx.Node, module: nn.Module, *sources: fx.Node) -> fx.Node:
        """Add a module, named after the node that it serves, and call it."""
        model = self.traced.model
        base = name = f"{node.name}_{type(module).__name__.lower()}"
        number = 1
        while hasattr(model, name):
            name, number = f"{base}_{number}", number + 1
        if (tensor := next(model.parameters(), None)) is not None:
            module.to(tensor.device, tensor.dtype)
        model.add_module(name, module)
        return self.graph.call_module(name, sources)

"""Writes the smaller network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from .analysis import Analysis
from .channels import Rule
from .rules.channel_modules import Select, positions
from .tracing import Traced


class Builder:
    """A graph in the making: what each old operation has become, and the channels that it has now."""

    def __init__(self, traced: Traced, analysis: Analysis, kept: Mapping[fx.Node, Tensor]) -> None:
        self.traced, self.analysis, self.kept = traced, analysis, kept
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        """Every operation that is read, in its old order."""
        for node, rule in self.analysis.rules.items():
            if node in self.kept:
                inputs = self.analysis.inputs(rule)
                self.made[node] = rule.rebuild(self, inputs, self.analysis.facts[node], self.kept[node])
        self.graph.lint()
        return fx.GraphModule(self.traced.model, self.graph, type(self.traced.model).__name__)

    def source(self, rule: Rule, number: int) -> fx.Node:
        """What a source has become, as it is."""
        return self.made[rule.sources[number]]

    def held(self, rule: Rule, number: int) -> Tensor:
        """The channels that a source still has."""
        source, axis = rule.sources[number], rule.axes[number]
        if axis == self.analysis.facts[source].axis:
            return self.kept[source]
        return torch.ones(self.analysis.sizes[rule.node][number], dtype=torch.bool)

    def maps(self, rule: Rule, number: int) -> Tensor | None:
        """The values of a source for one example, if only examples of its size are to be read."""
        return None if self.analysis.maps is None else self.analysis.maps.get(rule.sources[number])

    def take(self, rule: Rule, number: int, wanted: Tensor) -> fx.Node:
        """A source with these channels and no others."""
        node, axis, held = self.source(rule, number), rule.axes[number], self.held(rule, number)
        if axis is None or held.equal(wanted):
            return node
        return self.part(rule.node, Select(axis, positions(held, wanted)), node)

    def copy(self, node: fx.Node, made: Mapping[fx.Node, fx.Node] | None = None) -> fx.Node:
        """The operation as it was, on other tensors."""
        here = {**self.made, **(made or {})}
        return self.graph.node_copy(node, lambda old: here[old])

    def replace(self, node: fx.Node, source: fx.Node, module: nn.Module) -> fx.Node:
        """Another module under the name of the one that the operation calls."""
        self.traced.model.set_submodule(str(node.target), module)
        return self.graph.call_module(str(node.target), (source,))

    def part(self, node: fx.Node, module: nn.Module, *sources: fx.Node) -> fx.Node:
        """A module of ours, named for the operation that it serves."""
        model = self.traced.model
        base = name = f"{node.name}_{type(module).__name__.lower()}"
        number = 1
        while hasattr(model, name):
            name, number = f"{base}_{number}", number + 1
        if (tensor := next(model.parameters(), None)) is not None:
            module.to(tensor.device, tensor.dtype)
        model.add_module(name, module)
        return self.graph.call_module(name, sources)

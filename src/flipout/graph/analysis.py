"""Analyse the channels of a traced network: forward, what is known about them; backward, which are needed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..modules import plain_name, unwrapped
from .channels import Channels
from .comparison import Arguments, tensors_of
from .operations import explain_opaque, recognize
from .rules.base import Call, Rule
from .tracing import TracedNetwork, trace


@dataclass(frozen=True)
class ChannelAnalysis:
    """The rule of every node and the channels of its result, in the order of the graph.

    Args:
        rules: the rule of each node.
        channels: what is known about the result of each node.
        source_sizes: for each node, the number of channels of each of its sources.
        example_values: the values of tensors for one example, if all inputs will have its size. Then a channel that
            does not depend on the input is known, whatever it is at the borders. Its constant is stored as zero, and
            its values are in `example_values`.
    """

    rules: dict[fx.Node, Rule]
    channels: dict[fx.Node, Channels]
    source_sizes: dict[fx.Node, list[int]]
    example_values: Mapping[fx.Node, Tensor] | None = None

    def inputs(self, rule: Rule) -> list[Channels]:
        """Return the channels of each source of a rule, along the axis that it reads."""
        sources = zip(rule.sources, rule.axes, self.source_sizes[rule.node], strict=True)
        known = self.example_values or {}
        read = [(source, self.channels[source].along(axis, size)) for source, axis, size in sources]
        return [
            _zero_if_independent(each) if source in known and each.axis is not None else each for source, each in read
        ]

    def for_fixed_size(self, example_values: Mapping[fx.Node, Tensor]) -> ChannelAnalysis:
        """Return the analysis for inputs of one size, given the values of tensors for an example of that size."""
        channels = dict(self.channels)
        for node, rule in self.rules.items():
            if channels[node].axis is not None and all(each in example_values for each in (node, *rule.sources)):
                channels[node] = _zero_if_independent(channels[node])
        return ChannelAnalysis(self.rules, channels, self.source_sizes, example_values)

    def required_channels(self) -> dict[fx.Node, Tensor]:
        """Return the channels that the compacted network must have; nodes that it does not need are left out."""
        kept: dict[fx.Node, Tensor] = {}
        for node, rule in reversed(self.rules.items()):
            if node.op in ("output", "placeholder") and node not in kept:
                kept[node] = torch.zeros_like(self.channels[node].input_dependent)
            if node in kept:
                kept[node] = rule.expand(_at_least_one(kept[node], self.channels[node]))
                required = rule.required_inputs(self.inputs(rule), self.channels[node], kept[node])
                self._mark_sources(rule, required, kept)
        return kept

    def live_channels(self) -> dict[fx.Node, Tensor]:
        """Return the channels that depend on the input of the network and that its output depends on."""
        zeroed = {node: _zero_if_independent(channels) for node, channels in self.channels.items()}
        independent_as_zero = ChannelAnalysis(self.rules, zeroed, self.source_sizes)
        wanted: dict[fx.Node, Tensor] = {}
        for node, rule in reversed(self.rules.items()):
            if node.op == "output":
                wanted[node] = torch.ones_like(self.channels[node].input_dependent)
            if node in wanted:
                inputs = independent_as_zero.inputs(rule)
                influencing = rule.influencing_inputs(inputs, zeroed[node], wanted[node])
                self._mark_sources(rule, influencing, wanted)
        return {node: flags & self.channels[node].input_dependent for node, flags in wanted.items()}

    def _mark_sources(self, rule: Rule, flags: Sequence[Tensor | None], marked: dict[fx.Node, Tensor]) -> None:
        """Add the flags of a rule's sources to those that are marked already."""
        for source, axis, each in zip(rule.sources, rule.axes, flags, strict=True):
            if each is not None:
                channels = self.channels[source]
                each = each if axis == channels.axis else torch.ones_like(channels.input_dependent)
                marked[source] = marked[source] | each if source in marked else each


def analyze(traced: TracedNetwork) -> tuple[ChannelAnalysis, list[str]]:
    """Find the rule of every node and propagate channels from input to output; return also notes on opaque nodes."""
    analysis, notes = ChannelAnalysis({}, {}, {}), []
    shared, batched = _shared_modules(traced), _batched_nodes(traced)
    for node in traced.graph.nodes:
        call = Call(node, traced.module(node), traced.shapes, analysis.channels, batched)
        rule = recognize(call, shared)
        if rule is None:
            rule = Rule(node, call.sources, [None] * len(call.sources))
            if note := explain_opaque(call, shared):
                notes.append(note)
        shapes = [traced.shapes.get(source, ()) for source in rule.sources]
        sizes = [1 if axis is None else shape[axis] for axis, shape in zip(rule.axes, shapes, strict=True)]
        analysis.rules[node], analysis.source_sizes[node] = rule, sizes
        analysis.channels[node] = rule.propagate(analysis.inputs(rule))
    return analysis, notes


@dataclass(frozen=True)
class AnalyzedNetwork:
    """A network that was traced and analysed.

    Args:
        traced: its graph.
        analysis: the rule of every node.
        notes: what could not be traced or analysed.
        is_inside: whether the network is called `network` in the graph.
        first_names: for each name of a parameter, the first name of the same parameter, which a pruner uses.
    """

    traced: TracedNetwork
    analysis: ChannelAnalysis
    notes: tuple[str, ...]
    is_inside: bool
    first_names: Mapping[str, str]

    def name(self, node: fx.Node) -> str:
        """The name of what a node calls or reads in the network itself."""
        target = str(node.target)
        return plain_name(target.removeprefix("network").removeprefix(".") if self.is_inside else target)

    def weight_name(self, node: fx.Node) -> str:
        """The name of the weight of the layer that a node calls."""
        name = f"{self.name(node)}.weight".lstrip(".")
        return self.first_names.get(name, name)


@torch.no_grad()
def analyze_network(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> AnalyzedNetwork:
    """Trace and analyse a copy of a network. The random numbers of a running training are not changed."""
    network, arguments = unwrapped(model), (args, dict(kwargs or {}))
    example = tensors_of(arguments)
    by_position = not kwargs and all(isinstance(each, Tensor) for each in args)
    is_inside = not by_position or fx.Tracer().is_leaf_module(network, "")
    with torch.random.fork_rng(devices={each.device for each in example if each.is_cuda}):
        traced = trace(_Caller(network, arguments) if is_inside else network, example)
        analysis, opaque = analyze(traced)
    first: dict[nn.Parameter, str] = {}
    names = {
        plain_name(name): first.setdefault(parameter, plain_name(name))
        for name, parameter in network.named_parameters(remove_duplicate=False)
    }
    return AnalyzedNetwork(traced, analysis, (*traced.notes, *opaque), is_inside, names)


class _Caller(nn.Module):
    """Calls a network with the tensors of a call replaced, by position. Also a network that is a single module of
    torch: torch.fx would trace into it, and not see a layer."""

    def __init__(self, network: nn.Module, arguments: Arguments) -> None:
        super().__init__()
        self.network, self.arguments = network, arguments

    def forward(self, *inputs: Tensor) -> Any:
        (leaves, spec), rest = pytree.tree_flatten(self.arguments), iter(inputs)
        args, kwargs = pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], spec)
        return self.network(*args, **kwargs)


def _shared_modules(traced: TracedNetwork) -> set[str]:
    """Return the names of modules that are called more than once, or that share a tensor with another module."""
    users: dict[int, list[str]] = {}
    for node in traced.graph.nodes:
        if (module := traced.module(node)) is not None:
            for tensor in (*module.parameters(), *module.buffers()):
                users.setdefault(id(tensor), []).append(str(node.target))
        elif node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(traced.model)
            users.setdefault(id(tensor), []).append(str(node.target).rpartition(".")[0])
    return {name for names in users.values() if len(names) > 1 for name in names}


def _batched_nodes(traced: TracedNetwork) -> set[fx.Node]:
    """Return the nodes that are computed from the inputs of the network, so that their first axis is the batch."""
    batched: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op == "placeholder" or not batched.isdisjoint(node.all_input_nodes):
            batched.add(node)
    return batched


def _at_least_one(kept: Tensor, channels: Channels) -> Tensor:
    """Keep one channel if none is needed, for a tensor cannot have none; a constant one needs the least before it."""
    if kept.any() or not len(kept):
        return kept
    kept = kept.clone()
    kept[int((~channels.varies).int().argmax())] = True
    return kept


def _zero_if_independent(channels: Channels) -> Channels:
    """Return the channels with zero as the constant of each one that does not depend on the input."""
    constants = torch.where(channels.input_dependent, torch.nan, 0.0).double()
    return Channels(channels.axis, constants, channels.input_dependent)

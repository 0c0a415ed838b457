"""Effective sparsity: how many of the nonzero weights lie on a live path from the input to the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..modules import plain_name, unwrapped
from .analysis import ChannelAnalysis, analyze
from .example_inputs import Example, as_example
from .prunable_weights import PrunableWeight, prunable_weights
from .rules.layers_with_weights import WeightedLayerRule
from .tracing import TracedNetwork, trace
from .tracing_errors import UnsupportedNetworkError


@dataclass(frozen=True)
class EffectiveWeights:
    """Counts of the weights that can be pruned: all of them, those that are not zero, and the effective ones.

    The weights of Linear and convolution modules count, and the matrices of every other class of modules in which one
    has exact zeros, such as an `LSTM` that was pruned with `include=`.

    A nonzero weight is effective if its input channel depends on the input of the network, and the output of the
    network depends on its output channel.

    Args:
        prunable: all weights, zeros included.
        nonzero: the weights that are not zero.
        effective: the nonzero weights on a live path.
        layers: (nonzero, effective) for each weight tensor, by name.
        notes: the parts of the network that could not be analysed. There every nonzero weight counts as effective.
    """

    prunable: int
    nonzero: int
    effective: int
    layers: dict[str, tuple[int, int]]
    notes: tuple[str, ...] = ()

    @property
    def nominal_sparsity(self) -> float:
        return 1 - self.nonzero / self.prunable if self.prunable else 0.0

    @property
    def effective_sparsity(self) -> float:
        return 1 - self.effective / self.prunable if self.prunable else 0.0


@torch.no_grad()
def effective_weights(model: nn.Module, example_input: Example) -> EffectiveWeights:
    """Count the weights on a live path, channel by channel, for the network in evaluation mode.

    Args:
        model: the network; it is not changed.
        example_input: the inputs that the network is called with.
    """
    return count_effective(model, as_example(example_input), prunable_weights(model))


@torch.no_grad()
def count_effective(
    network: nn.Module, example: tuple[Tensor, ...], weights: Sequence[PrunableWeight]
) -> EffectiveWeights:
    """Count the weights on a live path. The network may be a copy of the one that the weights belong to."""
    try:
        analyzed = analyze_network(unwrapped(network), example)
        usage, notes = _usage(analyzed), analyzed.notes
    except UnsupportedNetworkError as error:
        usage, notes = None, (str(error),)
    layers: dict[str, tuple[int, int]] = {}
    for weight in weights:
        nonzero = int(weight.tensor.count_nonzero())
        live = nonzero if usage is None else usage.live_weights(weight)
        layers[weight.names[0]] = nonzero, nonzero if live is None else live
    prunable = sum(weight.tensor.numel() for weight in weights)
    nonzero, effective = (sum(pair[k] for pair in layers.values()) for k in (0, 1))
    return EffectiveWeights(prunable, nonzero, effective, layers, notes)


@dataclass(frozen=True)
class _Usage:
    """How a network uses its weights.

    Args:
        live: the number of effective weights for each layer that could be analysed, by the name of its weight.
        targets: the names of all modules that are called and of all tensors that are read.
    """

    live: dict[str, int]
    targets: list[str]

    def live_weights(self, weight: PrunableWeight) -> int | None:
        """Return the number of effective weights; None if the weight is used in a way that cannot be analysed."""
        # A layer whose weight is used in several places is not analysed, so at most one of the names is found.
        analysed = [self.live[name] for name in weight.names if name in self.live]
        if analysed:
            return analysed[0]
        return None if any(map(self._is_used, weight.names)) else 0

    def _is_used(self, name: str) -> bool:
        module = name.rpartition(".")[0]
        sources = f"{module}.parametrizations".lstrip(".")  # what a parametrized weight is computed from
        return any(_is_within(name, target) or _is_within(target, sources) for target in self.targets)


class _Caller(nn.Module):
    """Calls a network that is a single module of torch. torch.fx would trace into it, and not see a layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Any:
        return self.network(*inputs)


@dataclass(frozen=True)
class AnalyzedNetwork:
    """A network that was traced and analysed.

    Args:
        traced: its graph.
        analysis: the rule of every node.
        notes: what could not be traced or analysed.
        is_single_module: whether the network is a single module of torch, and is called `network` in the graph.
    """

    traced: TracedNetwork
    analysis: ChannelAnalysis
    notes: tuple[str, ...]
    is_single_module: bool

    def name(self, node: fx.Node) -> str:
        """Return the name of what a node calls or reads in the network itself."""
        target = str(node.target)
        return plain_name(target.removeprefix("network").removeprefix(".") if self.is_single_module else target)

    def weight_name(self, node: fx.Node) -> str:
        """Return the name of the weight of the layer that a node calls."""
        return f"{self.name(node)}.weight".lstrip(".")


def analyze_network(network: nn.Module, example: tuple[Tensor, ...]) -> AnalyzedNetwork:
    """Trace and analyse a copy of a network."""
    is_single_module = fx.Tracer().is_leaf_module(network, "")
    traced = trace(_Caller(network) if is_single_module else network, example)
    analysis, opaque = analyze(traced)
    return AnalyzedNetwork(traced, analysis, (*traced.notes, *opaque), is_single_module)


def _usage(network: AnalyzedNetwork) -> _Usage:
    """Return how a network uses its weights."""
    live_channels = network.analysis.live_channels()
    live: dict[str, int] = {}
    for node, rule in network.analysis.rules.items():
        if isinstance(rule, WeightedLayerRule):
            inputs = network.analysis.inputs(rule)[0].input_dependent
            live[network.weight_name(node)] = _weights_between(rule, inputs, live_channels.get(node))
    nodes = network.traced.graph.nodes
    return _Usage(live, [network.name(node) for node in nodes if node.op in ("call_module", "get_attr")])


def _is_within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


def _weights_between(layer: WeightedLayerRule, inputs: Tensor, outputs: Tensor | None) -> int:
    """Return the number of nonzero weights between input-dependent inputs and live outputs."""
    if outputs is None:
        return 0
    live = inputs.reshape(layer.groups, 1, -1) & outputs.reshape(layer.groups, -1, 1)
    return int(((layer.weights != 0).sum(2).reshape(live.shape) * live).sum())

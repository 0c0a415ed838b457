"""Effective sparsity: how many of the nonzero weights lie on a live path from the input to the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..layers import plain_name, unwrapped
from .analysis import analyze
from .example_inputs import Example, as_example
from .rules.layers_with_weights import WeightedLayerRule
from .tracing import trace
from .tracing_errors import UnsupportedNetworkError


@dataclass(frozen=True)
class EffectiveWeights:
    """Counts of the weights of Linear and convolution modules: prunable, nonzero and effective.

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
    example = as_example(example_input)
    weights = {
        name: module.weight
        for name, module in unwrapped(model).named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
    }
    try:
        live, notes = _count_live_weights(model, example, weights)
    except UnsupportedNetworkError as error:
        live, notes = {}, (str(error),)
    layers: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    for name, weight in weights.items():
        if id(weight) not in seen:  # tied weights count once
            seen.add(id(weight))
            nonzero = int(weight.count_nonzero())
            layers[plain_name(f"{name}.weight".lstrip("."))] = nonzero, live.get(name, nonzero)
    prunable = sum(weight.numel() for weight in {id(weight): weight for weight in weights.values()}.values())
    nonzero, effective = (sum(pair[k] for pair in layers.values()) for k in (0, 1))
    return EffectiveWeights(prunable, nonzero, effective, layers, notes)


def _count_live_weights(
    model: nn.Module, example: tuple[Tensor, ...], names: Iterable[str]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the effective weights of each layer that could be analysed or is never called, and the notes."""
    traced = trace(model, example)
    analysis, opaque = analyze(traced)
    live_channels = analysis.live_channels()
    targets = [str(node.target) for node in traced.graph.nodes if node.op in ("call_module", "get_attr")]
    live = {name: 0 for name in names if not any(_is_within(name, t) or _is_within(t, name) for t in targets)}
    for node, rule in analysis.rules.items():
        if isinstance(rule, WeightedLayerRule):
            inputs = analysis.inputs(rule)[0].input_dependent
            live[str(node.target)] = _weights_between(rule, inputs, live_channels.get(node))
    return live, (*traced.notes, *opaque)


def _is_within(name: str, outer: str) -> bool:
    return f"{name}.".startswith(f"{outer}.")


def _weights_between(layer: WeightedLayerRule, inputs: Tensor, outputs: Tensor | None) -> int:
    """Return the number of nonzero weights between input-dependent inputs and live outputs."""
    if outputs is None:
        return 0
    live = inputs.reshape(layer.groups, 1, -1) & outputs.reshape(layer.groups, -1, 1)
    return int(((layer.weights != 0).sum(2).reshape(live.shape) * live).sum())

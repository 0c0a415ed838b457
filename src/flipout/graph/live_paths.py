"""Effective sparsity: how many of the weights that are left lie on a live path from the input to the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..layers import plain_name, unwrapped
from .comparison import Example, as_example
from .recognition import analyze
from .rules.layers_with_weights import Layer
from .tracing import trace
from .tracing_errors import UntraceableError


@dataclass(frozen=True)
class Effective:
    """The weights of Linear and convolution modules: all, those that are not zero, and of these the effective ones.

    A weight is effective if what it reads depends on the input of the network, and the output of the network depends on
    what it writes. `layers` has (nonzero, effective) by the name of the weight, and `notes` what could not be followed:
    there every weight counts as effective that is not zero.
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
def effective(model: nn.Module, example_input: Example) -> Effective:
    """Counts the weights on a live path, channel by channel, of the network in evaluation mode.

    Args:
        model: the network; it stays as it is.
        example_input: what the network is called with.
    """
    example = as_example(example_input)
    weights = {
        name: module.weight
        for name, module in unwrapped(model).named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
    }
    try:
        live, notes = _count(model, example, weights)
    except UntraceableError as error:
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
    return Effective(prunable, nonzero, effective, layers, notes)


def _count(
    model: nn.Module, example: tuple[Tensor, ...], names: Iterable[str]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The effective weights of the layers that can be followed, or that are never called."""
    traced = trace(model, example)
    analysis, opaque = analyze(traced)
    relevant = analysis.relevant()
    targets = [str(node.target) for node in traced.graph.nodes if node.op in ("call_module", "get_attr")]
    live = {name: 0 for name in names if not any(_within(name, t) or _within(t, name) for t in targets)}
    for node, rule in analysis.rules.items():
        if isinstance(rule, Layer):
            carries = analysis.inputs(rule)[0].carries
            live[str(node.target)] = _on_live_path(rule, carries, relevant.get(node))
    return live, (*traced.notes, *opaque)


def _within(name: str, outer: str) -> bool:
    return f"{name}.".startswith(f"{outer}.")


def _on_live_path(layer: Layer, carries: Tensor, relevant: Tensor | None) -> int:
    if relevant is None:
        return 0
    live = carries.reshape(layer.groups, 1, -1) & relevant.reshape(layer.groups, -1, 1)
    return int(((layer.weights != 0).sum(2).reshape(live.shape) * live).sum())

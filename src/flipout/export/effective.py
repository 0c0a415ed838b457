"""Effective sparsity: how many of the weights that are left lie on a live path from the input to the output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..layers import unwrapped
from .graph import UntraceableError, trace
from .recognize import analyze
from .weighted import Layer


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
def effective(model: nn.Module, example_input: Tensor | tuple[Tensor, ...]) -> Effective:
    """Counts the weights on a live path, channel by channel, of the network in evaluation mode.

    Args:
        model: the network; it stays as it is.
        example_input: what the network is called with.
    """
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    counted: dict[int, int] = {}
    try:
        traced = trace(model, example)
        analysis, opaque = analyze(traced)
        relevant, notes = analysis.relevant(), (*traced.notes, *opaque)
        for node, rule in analysis.rules.items():
            if isinstance(rule, Layer):
                counted[id(rule.module)] = _on_live_path(rule, analysis.inputs(rule)[0].carries, relevant.get(node))
        names = {id(module): name for name, module in traced.model.named_modules()}
        by_name = {names[key]: count for key, count in counted.items()}
    except UntraceableError as error:
        by_name, notes = {}, (str(error),)
    layers: dict[str, tuple[int, int]] = {}
    prunable = 0
    seen: set[int] = set()
    for name, module in unwrapped(model).named_modules():
        if isinstance(module, nn.Linear | _ConvNd) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            nonzero = int(module.weight.count_nonzero())
            layers[f"{name}.weight" if name else "weight"] = nonzero, by_name.get(name, nonzero)
            prunable += module.weight.numel()
    nonzero, live = (sum(pair[k] for pair in layers.values()) for k in (0, 1))
    return Effective(prunable, nonzero, live, layers, notes)


def _on_live_path(layer: Layer, carries: Tensor, relevant: Tensor | None) -> int:
    if relevant is None:
        return 0
    live = carries.reshape(layer.groups, 1, -1) & relevant.reshape(layer.groups, -1, 1)
    return int(((layer.weights != 0).sum(2).reshape(live.shape) * live).sum())

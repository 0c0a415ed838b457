"""Lossless compaction: the same network with fewer channels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY as PRESERVED
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from ..layers import unwrapped
from ..summary import table
from .graph import UntraceableError, trace
from .rebuild import Builder
from .recognize import analyze


@dataclass(frozen=True)
class LayerChange:
    """A Linear or convolution before and after: inputs, outputs, and weights, zeros included. One that went has none."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weights: tuple[int, int]


@dataclass(frozen=True)
class Compaction:
    """What compaction did to each layer; printed as a table."""

    layers: tuple[LayerChange, ...]

    @property
    def weights(self) -> tuple[int, int]:
        """Of all these layers, before and after."""
        return sum(layer.weights[0] for layer in self.layers), sum(layer.weights[1] for layer in self.layers)

    @property
    def channels(self) -> tuple[int, int]:
        """Outputs of all these layers, before and after."""
        return sum(layer.outputs[0] for layer in self.layers), sum(layer.outputs[1] for layer in self.layers)

    def __str__(self) -> str:
        def change(pair: tuple[int, int]) -> str:
            return f"{pair[0]:,} -> {pair[1]:,}"

        rows = [(layer.name, *map(change, (layer.inputs, layer.outputs, layer.weights))) for layer in self.layers]
        rows.append(("total", "", change(self.channels), change(self.weights)))
        return table(("layer", "inputs", "outputs", "weights"), rows)


def compact(model: nn.Module, example_input: Tensor | tuple[Tensor, ...]) -> nn.Module:
    """A network with fewer channels and, in evaluation mode, the same outputs to rounding.

    Goes: every channel that nobody reads, and every constant one, whose value is folded into what follows. The model
    that is given stays as it is. What is not understood is left alone, and named in `notes` of the result; what was done
    to each layer is in its `compaction`.

    Args:
        model: the network; it must run on the example.
        example_input: what the network is called with; batch size and values do not matter, the number of axes does.
    """
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    original = copy.deepcopy(unwrapped(model)).eval()
    try:
        small, notes = _once(original, example)
        while (again := _once(small, example)[0]) and _numbers(again) < _numbers(small):
            small = again
        if difference := _difference(original, small, example):
            raise UntraceableError(f"a smaller network gave other outputs ({difference})")
    except UntraceableError as error:
        small, notes = original, [f"nothing was removed: {error}"]
    return _described(small, notes, Compaction(tuple(_changes(original, small))))


def _once(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[nn.Module, list[str]]:
    """One pass. Most networks need no second one; a convolution of which one group is left does."""
    traced = trace(model, example)
    analysis, notes = analyze(traced)
    return Builder(traced, analysis, analysis.keep()).build().eval(), [*traced.notes, *notes]


def _numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def _difference(original: nn.Module, small: nn.Module, example: tuple[Tensor, ...]) -> str | None:
    """How outputs differ by more than rounding, on the example and on random numbers."""
    drawn = tuple(torch.randn_like(x) if x.is_floating_point() else x for x in example)
    for inputs in (example, drawn):
        outputs = []
        for model in (original, small):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # for networks that draw random numbers even when evaluated
                outputs.append(pytree.tree_leaves(model(*copy.deepcopy(inputs))))
        for expected, actual in zip(*outputs, strict=True):
            if isinstance(expected, Tensor) and expected.is_floating_point():
                size = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max()) if expected.numel() else 0.0
                bound = 1e4 * torch.finfo(expected.dtype).eps * max(size, 1e-3)
                if not torch.allclose(expected, actual, rtol=0, atol=bound, equal_nan=True):
                    return f"by {float((expected - actual).abs().max()):.1e}, where they are up to {size:.1e}"
    return None


def _changes(before: nn.Module, after: nn.Module) -> Iterator[LayerChange]:
    left = dict(after.named_modules())
    for name, module in before.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            pairs = zip(_sizes(module), _sizes(left.get(name)), strict=True)
            yield LayerChange(name, *pairs)


def _sizes(module: nn.Module | None) -> tuple[int, int, int]:
    """Inputs, outputs and weights."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, module.weight.numel()
    if isinstance(module, _ConvNd):
        return module.in_channels, module.out_channels, module.weight.numel()
    return 0, 0, 0


def _described(model: nn.Module, notes: list[str], compaction: Compaction) -> nn.Module:
    own: dict[str, Any] = {"notes": notes, "compaction": compaction}
    if isinstance(model, fx.GraphModule):
        model.meta[PRESERVED] = own  # or a deepcopy would lose them
    for name, value in own.items():
        setattr(model, name, value)
    return model

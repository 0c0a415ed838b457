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
from .graph import UntraceableError, evaluate, trace
from .rebuild import Builder
from .recognize import analyze


@dataclass(frozen=True)
class LayerChange:
    """A Linear or convolution before and after: inputs, outputs, and weights, zeros included; all 0 if it went."""

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


def compact(model: nn.Module, example_input: Tensor | tuple[Tensor, ...], *, fixed_size: bool = False) -> nn.Module:
    """A network with fewer channels and, in evaluation mode, the same outputs to rounding.

    What goes: every channel that nobody reads, and every constant one, whose value is folded into what follows. The
    model that is given stays as it is. What is not understood is left alone, and named in `notes` of the result; what
    was done to each layer is in its `compaction`.

    Args:
        model: the network; it must run on the example.
        example_input: what the network is called with; neither values nor batch size matter.
        fixed_size: let only inputs of the example's size go in, but for the batch. Then channels go too that do not
            depend on the input but differ at the borders, where zero padding met a constant.
    """
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    original = copy.deepcopy(unwrapped(model)).eval()
    trials = _Trials(original, example)
    try:
        small, notes = _once(original, example, fixed_size=False)
        small = _repeated(small, example, fixed_size=False)
        if fixed_size:
            small = _repeated(small, example, fixed_size=True)
        if difference := trials.difference(small):
            raise UntraceableError(f"the smaller network gave other outputs ({difference})")
    except UntraceableError as error:
        small, notes = original, [f"nothing was removed: {error}"]
    return _described(small, notes, Compaction(tuple(_changes(original, small))))


@torch.no_grad()
def _once(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """One pass. Most networks need no second one; a convolution of which one group is left does."""
    traced = trace(model, example)
    analysis, notes = analyze(traced)
    if fixed_size:
        analysis = analysis.fixed(evaluate(traced, example))
    return Builder(traced, analysis, analysis.keep()).build().eval(), [*traced.notes, *notes]


def _repeated(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> nn.Module:
    """As many passes as make it smaller."""
    while _numbers(smaller := _once(model, example, fixed_size=fixed_size)[0]) < _numbers(model):
        model = smaller
    return model


def _numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class _Trials:
    """What a network gives on the example and on random numbers, to compare another with."""

    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        drawn = tuple(torch.randn_like(x) if x.is_floating_point() else x for x in example)
        self.inputs = [example, drawn]
        self.outputs = [self._run(model, inputs) for inputs in self.inputs]

    def difference(self, model: nn.Module) -> str | None:
        """How its outputs differ by more than rounding."""
        for inputs, outputs in zip(self.inputs, self.outputs, strict=True):
            for expected, actual in zip(outputs, self._run(model, inputs), strict=True):
                size = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max()) if expected.numel() else 0.0
                bound = 1e4 * torch.finfo(expected.dtype).eps * max(size, 1e-3) if expected.is_floating_point() else 0.0
                if not torch.allclose(expected, actual, rtol=0, atol=bound, equal_nan=True):
                    return f"by {float((expected - actual).abs().max()):.1e}, where they are up to {size:.1e}"
        return None

    @torch.no_grad()
    def _run(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for networks that draw random numbers even when evaluated
            outputs = pytree.tree_leaves(model(*copy.deepcopy(inputs)))
        return [output for output in outputs if isinstance(output, Tensor)]


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

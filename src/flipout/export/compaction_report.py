"""The report of a compaction: every layer before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..text_table import table


@dataclass(frozen=True)
class LayerChange:
    """The inputs, outputs and weights (zeros included) of a layer, each before and after; 0 if it was removed."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weights: tuple[int, int]


@dataclass(frozen=True)
class CompactionReport:
    """The change of every Linear and convolution layer; prints as a table."""

    layers: tuple[LayerChange, ...]

    @property
    def weights(self) -> tuple[int, int]:
        """The total number of weights, before and after."""
        return sum(layer.weights[0] for layer in self.layers), sum(layer.weights[1] for layer in self.layers)

    @property
    def channels(self) -> tuple[int, int]:
        """The total number of outputs, before and after."""
        return sum(layer.outputs[0] for layer in self.layers), sum(layer.outputs[1] for layer in self.layers)

    def __str__(self) -> str:
        def change(pair: tuple[int, int]) -> str:
            return f"{pair[0]:,} -> {pair[1]:,}"

        rows = [(layer.name, *map(change, (layer.inputs, layer.outputs, layer.weights))) for layer in self.layers]
        rows.append(("total", "", change(self.channels), change(self.weights)))
        return table(("layer", "inputs", "outputs", "weights"), rows)


def report_changes(before: nn.Module, after: nn.Module) -> CompactionReport:
    """Compare every Linear and convolution layer of a network with the compacted network."""
    return CompactionReport(tuple(_layer_changes(before, after)))


def _layer_changes(before: nn.Module, after: nn.Module) -> Iterator[LayerChange]:
    modules_after = dict(after.named_modules())
    for name, module in before.named_modules():
        if _is_layer(module):
            found = modules_after.get(name)
            # If the network reads a weight without calling the layer, torch.fx keeps the weight in a plain module.
            keeps_weight = found is not None and getattr(found, "weight", None) is not None
            sizes_after = _sizes(module if keeps_weight and not _is_layer(found) else found)
            yield LayerChange(name, *zip(_sizes(module), sizes_after, strict=True))


def _is_layer(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear | _ConvNd)


def _sizes(module: nn.Module | None) -> tuple[int, int, int]:
    """Return the numbers of inputs, outputs and weights."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, module.weight.numel()
    if isinstance(module, _ConvNd):
        return module.in_channels, module.out_channels, module.weight.numel()
    return 0, 0, 0

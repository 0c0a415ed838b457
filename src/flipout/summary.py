"""Summaries for people: the plan before training, the layers after it."""

from __future__ import annotations

from dataclasses import dataclass

from .layers import Layer
from .modules import is_transposed
from .schedules import Pruning
from .text_table import table


class Plan(list[Pruning]):
    """The planned prunings; prints as a table."""

    def __str__(self) -> str:
        rows = [
            (
                f"{step:,}",
                "by threshold" if sparsity is None else f"{sparsity:.4%}",
                "" if kept is None else f"{kept:,}",
            )
            for step, sparsity, kept in self
        ]
        return table(("step", "sparsity", "weights kept"), rows) if rows else "no pruning"


@dataclass(frozen=True)
class LayerSummary:
    """One weight tensor after pruning.

    The channel counts are None for a tensor without channels, such as a bias. `effective` is the number of weights on a
    live path from input to output, or None if no example input was given. A `transposed` matrix is stored as inputs x
    outputs, as in Hugging Face's Conv1D.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    dead_inputs: int | None
    inputs: int | None
    dead_outputs: int | None
    outputs: int | None
    effective: int | None = None
    transposed: bool = False

    @property
    def sparsity(self) -> float:
        return 1 - self.kept / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class Summary:
    """Every layer, the total, and the progress of the schedule; prints as a table."""

    layers: tuple[LayerSummary, ...]
    status: str

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        return sum(layer.kept for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return 1 - self.kept / self.weights

    @property
    def effective(self) -> int | None:
        counts = [layer.effective for layer in self.layers if layer.effective is not None]
        return sum(counts) if counts else None

    def __str__(self) -> str:
        def share(dead: int | None, channels: int | None) -> str:
            return "" if dead is None else f"{dead:,} / {channels:,}"

        def cells(layer: LayerSummary | Summary, sparsity: str) -> tuple[str, ...]:
            count = "" if layer.effective is None else f"{layer.effective:,}"
            return f"{layer.weights:,}", f"{layer.kept:,}", *([] if self.effective is None else [count]), sparsity

        rows = [
            (
                layer.name,
                " x ".join(map(str, layer.shape)) + (" (in x out)" if layer.transposed else ""),
                *cells(layer, f"{layer.sparsity:.2%}"),
                share(layer.dead_inputs, layer.inputs),
                share(layer.dead_outputs, layer.outputs),
            )
            for layer in self.layers
        ]
        rows.append(("total", "", *cells(self, f"{self.sparsity:.4%}"), "", ""))
        counts = ("weights", "kept", *([] if self.effective is None else ["effective"]), "sparsity")
        return table(("layer", "shape", *counts, "dead inputs", "dead outputs"), rows) + "\n" + self.status


def summarize(layer: Layer, effective: int | None = None) -> LayerSummary:
    """Count the weights that a layer keeps, and its channels that no kept weight reads or writes."""
    shape, transposed = tuple(layer.weight.shape), is_transposed(layer.module)
    return LayerSummary(layer.name, shape, layer.size, layer.kept, *layer.channels, effective, transposed)

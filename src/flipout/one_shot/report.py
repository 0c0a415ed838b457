"""What one-shot pruning did, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..text_table import table


@dataclass(frozen=True)
class PrunedLayer:
    """A layer after `prune`.

    Args:
        name: the name of its weight.
        weights: the number of its weights.
        kept: how many of them are left.
        error_masked: the squared error of its outputs on the calibration batches, relative to their mean square, with
            the weights pruned and the others left as they were.
        error: the same with the weights as they are now. Both are NaN for a layer whose inputs are not observed, such
            as a recurrent one.
        seconds: the time that it took, with the passes that observed its inputs.
    """

    name: str
    weights: int
    kept: int
    error_masked: float
    error: float
    seconds: float

    @property
    def sparsity(self) -> float:
        """The share of its weights that are pruned."""
        return 1 - self.kept / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class PruneReport:
    """The layers that `prune` has pruned; prints as a table. With several rounds, errors are those of the last.

    Args:
        method: what chose the weights.
        layers: the layers in the order of the model.
        recalibrated: how many batch norms were estimated again.
        seconds: the time of the whole call.
        notes: what was reached of a target, and what could not be divided into channels.
    """

    method: str
    layers: tuple[PrunedLayer, ...]
    recalibrated: int
    seconds: float
    notes: str = ""

    @property
    def prunable(self) -> int:
        """The number of weights, pruned ones included."""
        return sum(layer.weights for layer in self.layers)

    @property
    def nonzero(self) -> int:
        """The number of weights that are left."""
        return sum(layer.kept for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """The share of weights that are pruned."""
        return 1 - self.nonzero / self.prunable if self.prunable else 0.0

    def __str__(self) -> str:
        head = ("layer", "weights", "kept", "sparsity", "error, masked", "error", "seconds")
        rows = [
            (
                layer.name,
                f"{layer.weights:,}",
                f"{layer.kept:,}",
                f"{layer.sparsity:.2%}",
                *("" if math.isnan(error) else f"{error:.2%}" for error in (layer.error_masked, layer.error)),
                f"{layer.seconds:.2f}",
            )
            for layer in self.layers
        ]
        total = ("total", f"{self.prunable:,}", f"{self.nonzero:,}", f"{self.sparsity:.2%}", "", "")
        norms = f"; {self.recalibrated} batch norms estimated again" if self.recalibrated else ""
        notes = f"\n{self.notes}" if self.notes else ""
        return f"{table(head, [*rows, (*total, f'{self.seconds:.2f}')])}\n{self.method}{norms}{notes}"

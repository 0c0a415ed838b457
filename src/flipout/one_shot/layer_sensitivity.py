"""Sensitivity: how much the network changes if one layer alone is pruned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import output_tensors
from ..criteria import Criterion
from ..modules import unwrapped
from ..runtime.batches import Batches, LossFunction, read_loss
from ..runtime.scoring import name_of
from ..schedules import nonzero
from ..text_table import table
from ..units import GranularityChoice, as_granularity
from ..weights import Patterns, find_weights
from .calibration import Stage, Walk, calibrating
from .layer_pruning import LayerPruning
from .layers import Layer, layers_of, with_inputs
from .pruning import Progress
from .scoring import MethodName, Scoring

Values = list[Tensor]


@dataclass(frozen=True)
class Sensitivity:
    """How much a network changes if one layer alone is pruned; prints as a table.

    Args:
        sparsities: the sparsities that were tried.
        changes: for each weight, by name, the change at each of them.
        of_loss: whether a change is that of the loss; otherwise it is the squared error of the network's outputs,
            relative to their mean square.
    """

    sparsities: tuple[float, ...]
    changes: dict[str, tuple[float, ...]]
    of_loss: bool

    def limits(self, most: float) -> dict[str, float]:
        """For each weight the sparsity at which the change is `most`, for `flipout.prune(..., sparsity=limits)`.

        The sparsity is interpolated linearly between those that were tried, and is at most the largest of them.
        """
        return {name: self._limit(changes, most) for name, changes in self.changes.items()}

    def _limit(self, changes: Sequence[float], most: float) -> float:
        points = [(0.0, 0.0), *zip(self.sparsities, changes, strict=True)]
        for (sparsity, change), (next_sparsity, next_change) in pairwise(points):
            if next_change > most:
                share = (most - change) / (next_change - change)
                return round(sparsity + max(0.0, share) * (next_sparsity - sparsity), 4)
        return points[-1][0]

    def __str__(self) -> str:
        head = (
            "change of the loss" if self.of_loss else "change of the output",
            *(f"{s:.2%}" for s in self.sparsities),
        )
        return table(head, [(name, *map(self._shown, changes)) for name, changes in self.changes.items()])

    def _shown(self, change: float) -> str:
        return f"{change:+.4f}" if self.of_loss else f"{change:.2%}"

    def plot(self, file: Path | str) -> None:
        """Draw the changes into a file, whose suffix says its format. Needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, changes in self.changes.items():
            axes.plot(self.sparsities, changes, marker="o", markersize=3, label=name)
        axes.set_xlabel("sparsity of the layer")
        axes.set_ylabel("change of the loss" if self.of_loss else "change of the output")
        axes.set_yscale("symlog", linthresh=1e-4)
        figure.legend(loc="outside right upper", fontsize="x-small")
        figure.savefig(file, dpi=150)


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss_fn: LossFunction | None = None,
    sparsities: Sequence[float] = (0.5, 0.7, 0.9),
    method: MethodName | Criterion = "obs",
    granularity: GranularityChoice = "weight",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    block: int = 2048,
    damping: float = 0.01,
    progress: Progress | None = None,
) -> Sensitivity:
    """Prune one layer at a time, and measure how much the network changes. The model is left as it is.

        >>> found = flipout.sensitivity(model, loader, sparsities=(0.5, 0.9))
        >>> report = flipout.prune(model, loader, sparsity=found.limits(0.01))

    Batch norms use the statistics of each batch, because `flipout.prune` estimates them again.

    Args:
        model: the network.
        batches: what it is called with; see `flipout.prune`.
        loss_fn: the loss of an output and a target. With it the change of the loss is measured, and without it that of
            the outputs.
        sparsities: the sparsities to try, in rising order.
        method: how a layer is pruned; see `flipout.prune`.
        granularity: what is pruned as one unit: "weight", "kernel" or a block. A channel belongs to several layers,
            and a pattern has one sparsity.
        include: which weights to prune in place of the usual ones; see `flipout.prune`.
        exclude: which weights to leave out.
        block: the most inputs that one Hessian spans.
        damping: the share of the mean of the Hessian's diagonal that is added to it.
        progress: called before each layer with the number of layers done, that of all, and the name of the layer.
    """
    tried = tuple(sparsities)
    if not tried or list(tried) != sorted(set(tried)) or not (tried[0] > 0 and tried[-1] < 1):
        raise ValueError(f"sparsities is {sparsities}; give shares between 0 and 1, in rising order")
    network, unit = unwrapped(model), as_granularity(granularity)
    if unit.kind in ("channel", "pattern"):
        raise ValueError(
            f"granularity={str(unit)!r} cannot prune one layer to any sparsity; give 'weight', 'kernel' or a block"
        )
    weights = find_weights(model, None, include, exclude)
    scoring = None if method == "obs" else Scoring(method, loss_fn, 0)
    read = Batches(batches, model)
    layers = layers_of(network, weights, block)
    if scoring is None or scoring.needs_inputs:
        layers = with_inputs(layers, method if isinstance(method, str) else name_of(method), chosen=include is not None)
    if scoring is not None:
        scoring.start(read, weights)
    pruning = LayerPruning(network, unit, "layer", scoring, damping)
    changes: dict[str, tuple[float, ...]] = {}
    with calibrating(network, norms=True):
        walk = Walk(network, read, [layer for layer in layers if layer.modules])
        alone = [Stage([layer], 0, 0) for layer in layers if not layer.modules]
        for stage in (*walk.stages, *alone):
            seen = walk.observe(stage) if stage.calls else {}
            for layer in stage.layers:
                if progress is not None:
                    progress(len(changes), len(layers), layer.name)
                with restored(layer) as original:
                    variants = []
                    for sparsity in tried:
                        pruning.prune(layer, seen.get(layer), nonzero(layer.weight.size, sparsity), 0)
                        variants.append([tensor.detach().clone() for tensor in tensors_of(layer)])
                        put(layer, original)
                    changes[layer.name] = measure(read, layer, original, variants, loss_fn)
    in_order = {layer.name: changes[layer.name] for layer in layers}
    return Sensitivity(tried, in_order, loss_fn is not None)


def tensors_of(layer: Layer) -> Values:
    return [layer.weight.parameter, *([] if layer.bias is None else [layer.bias])]


@torch.no_grad()
def put(layer: Layer, values: Values) -> None:
    """Give a layer other weights; nothing of it counts as pruned."""
    for tensor, value in zip(tensors_of(layer), values, strict=True):
        tensor.copy_(value)
    layer.weight.mask.fill_(True)
    layer.weight.kept = layer.weight.size


@contextmanager
def restored(layer: Layer) -> Iterator[Values]:
    """The weights of a layer, which it has again at the end."""
    original = [tensor.detach().clone() for tensor in tensors_of(layer)]
    try:
        yield original
    finally:
        put(layer, original)


def measure(
    batches: Batches, layer: Layer, original: Values, variants: Sequence[Values], loss_fn: LossFunction | None
) -> tuple[float, ...]:
    """The change of the network with each of some other weights of a layer."""
    totals = [0.0] * len(variants)
    reference = 0.0
    for number, call in enumerate(batches):
        put(layer, original)
        expected = batches.run(number, call)
        if loss_fn is None:
            reference += squares(expected)
        else:
            base = float(read_loss(loss_fn, expected, call))
            reference = float(batches.number)
        for place, variant in enumerate(variants):
            put(layer, variant)
            found = batches.run(number, call)
            totals[place] += (
                squares(expected, found) if loss_fn is None else float(read_loss(loss_fn, found, call)) - base
            )
    return tuple(total / reference if reference else 0.0 for total in totals)


def squares(output: Any, other: Any = None) -> float:
    """The sum of the squares of all numbers of an output, or of their differences from another one's."""
    floats = [each for each in output_tensors(output) if each.is_floating_point()]
    if other is None:
        return sum(float(each.double().square().sum()) for each in floats)
    others = [each for each in output_tensors(other) if each.is_floating_point()]
    return sum(float((a.double() - b.double()).square().sum()) for a, b in zip(floats, others, strict=True))

"""Summaries for people: the plan before training, the layers after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from .channels.comparison import NamedExample, as_arguments
from .channels.live_paths import count_effective, prunable_weights
from .events import Event
from .modules import is_transposed
from .schedules import Pruning
from .text_table import table
from .weights import Weight


class Plan(list[Pruning]):
    """The planned prunings; prints as a table.

    Args:
        prunings: the prunings.
        target: what their sparsity is a share of, such as "multiply-adds".
        reached: for each pruning that is done, the share of the target that is pruned.
    """

    def __init__(
        self, prunings: Iterable[Pruning], target: str = "weights", reached: Sequence[float | None] = ()
    ) -> None:
        super().__init__(prunings)
        self.target, self.reached = target, list(reached)

    def __str__(self) -> str:
        if self and self.target != "weights":
            done = [f"{share:.2%}" if share is not None else "" for share in self.reached]
            done += [""] * (len(self) - len(done))
            pruned = [(f"{p.step:,}", f"{p.sparsity or 0:.2%}", each) for p, each in zip(self, done, strict=True)]
            return table(("step", f"{self.target} pruned", "reached"), pruned)
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


def summarize(weight: Weight, effective: int | None = None) -> LayerSummary:
    """Count the elements that a weight keeps, and its channels that no kept element reads or writes."""
    shape, transposed = tuple(weight.view.positions.shape), is_transposed(weight.module)
    return LayerSummary(weight.name, shape, weight.size, weight.kept, *weight.channels, effective, transposed)


def summary_of(
    model: nn.Module,
    weights: Sequence[Weight],
    events: Sequence[Event],
    status: Sequence[str],
    units: str,
    example_input: NamedExample | None,
) -> Summary:
    """The summary of a pruner. `status` are lines about its progress, and `units` further ones."""
    lines = list(status)
    if returned := [event for event in events if event.grown]:
        number = sum(event.grown for event in returned)
        lines.append(f"{number:,} times a pruned weight came back, the last time at step {returned[-1].step:,}")
    live = dict[str, tuple[int, int]]()
    if example_input is not None:
        if any(weight.view.key is not None for weight in weights):
            raise ValueError(
                "summary(example_input) is incompatible with sharded weights: gather them into an ordinary model, and "
                "use flipout.export.effective_weights(model, x), or call summary() without an example"
            )
        counted = count_effective(model, as_arguments(example_input), prunable_weights(model))
        live = counted.layers
        lines += [f"effective weights are all nonzero ones where nothing is known: {note}" for note in counted.notes]
    rows = (summarize(weight, live[weight.name][1] if weight.name in live else None) for weight in weights)
    return Summary(tuple(rows), "\n".join(lines) + units)

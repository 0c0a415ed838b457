"""Pruning events: what one changes, what is recorded of it, and how far a schedule has progressed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .layers import Layer, count_marks
from .warnings import DeadLayerWarning, UnfinishedWarning


@dataclass(frozen=True)
class Selection:
    """What a pruning event changes: for each layer a boolean tensor of the weight's shape.

    `prune` marks kept weights that are pruned. `grow` marks pruned weights that come back, with the value 0; it is
    empty for an event that only prunes.
    """

    prune: Sequence[Tensor]
    grow: Sequence[Tensor] = ()

    def count_grown(self, layers: Sequence[Layer]) -> int:
        """The number of weights that come back, on all ranks."""
        return sum(count_marks(self.grow, layers[: len(self.grow)]))

    def check(self, method: str, layers: Sequence[Layer], keep: int, floors: Sequence[int]) -> None:
        """Refuse a selection that does not leave exactly `keep` weights and the floor of each layer, before anything is
        changed."""
        misplaced = []
        for number, layer in enumerate(layers):
            wrong = self.prune[number] > layer.mask
            if self.grow:
                wrong |= self.grow[number] & layer.mask
            misplaced.append(wrong)
        repeated = [*layers] * (3 if self.grow else 2)
        read = count_marks([*misplaced, *self.prune, *self.grow], repeated)
        if names := [layer.name for layer, wrong in zip(layers, read, strict=False) if wrong]:
            raise ValueError(
                f"{method}.select() marks weights of {names[0]} that it cannot change: `prune` must mark kept "
                "weights, and `grow` pruned ones"
            )
        pruned, grown = read[len(layers) : 2 * len(layers)], read[2 * len(layers) :] or [0] * len(layers)
        left = [layer.kept - gone + back for layer, gone, back in zip(layers, pruned, grown, strict=True)]
        if sum(left) != keep:
            raise ValueError(f"{method}.select() leaves {sum(left):,} weights, but {keep:,} are due")
        for layer, kept, floor in zip(layers, left, floors, strict=True):
            if kept < floor:
                raise ValueError(f"{method}.select() leaves {kept:,} weights of {layer.name}; its floor is {floor:,}")


class Event(NamedTuple):
    """The record of a pruning event: its step, the sparsity and the weights kept after it, and how many grew back."""

    step: int
    sparsity: float
    nonzero: int
    kept: dict[str, int]
    grown: int = 0


def warn_of_dead_layer(name: str, step: int) -> None:
    warnings.warn(
        f"{name} lost its last weight at step {step}: nothing passes through it any more. Keep some weights with "
        "floor=, leave the layer out with exclude=, or ask for less sparsity",
        DeadLayerWarning,
        stacklevel=3,
    )


@dataclass
class Progress:
    """The progress of a schedule. It outlives its pruner, to warn when the pruner is dropped too early."""

    last: int
    steps: int
    step: int = 0
    finished: bool = False

    def complaint(self) -> str:
        """The message for an unfinished schedule, with its most likely cause."""
        return (
            f"the schedule is not finished: {self.step:,} optimizer steps were taken, and the last pruning is due at "
            f"step {self.last:,} of {self.steps:,}. Is steps= the number of optimizer steps? (With gradient "
            "accumulation that is batches / accumulation.)"
        )

    def warn(self) -> None:
        """Warn if the schedule is not finished."""
        if not self.finished:
            warnings.warn(self.complaint(), UnfinishedWarning, stacklevel=3)

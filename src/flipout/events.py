"""Pruning events: what one changes, what is recorded of it, and how far a schedule has progressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .problems import DeadLayerWarning, UnfinishedWarning, warn
from .weights import Weight, count_marks


@dataclass(frozen=True)
class Selection:
    """What a pruning event changes: for each weight tensor a boolean tensor of its elements.

    `prune` marks kept weights that are pruned. `grow` marks pruned weights that come back; it is empty for an event
    that only prunes.

        >>> smallest = [weight.abs() < 0.1 for weight in (model[0].weight, model[2].weight)]
        >>> selection = flipout.Selection(prune=smallest)
    """

    prune: Sequence[Tensor]
    grow: Sequence[Tensor] = ()

    @classmethod
    def between(cls, before: Sequence[Tensor], after: Sequence[Tensor], *, grows: bool) -> Selection:
        """The selection that changes masks to others."""
        pruned = [old & ~new for old, new in zip(before, after, strict=True)]
        return cls(pruned, [new & ~old for old, new in zip(before, after, strict=True)] if grows else ())

    def count_grown(self, weights: Sequence[Weight]) -> int:
        """The number of weights that come back, on all ranks."""
        return sum(count_marks(self.grow, weights)) if self.grow else 0

    def check(self, method: str, weights: Sequence[Weight], keep: int, floors: Sequence[int]) -> None:
        """Refuse a selection that does not leave exactly `keep` weights and the floor of each tensor, before anything
        is changed."""
        misplaced = []
        for number, weight in enumerate(weights):
            wrong = self.prune[number] > weight.mask
            if self.grow:
                wrong |= self.grow[number] & weight.mask
            misplaced.append(wrong)
        repeated = [*weights] * (3 if self.grow else 2)
        read = count_marks([*misplaced, *self.prune, *self.grow], repeated)
        if names := [weight.name for weight, wrong in zip(weights, read, strict=False) if wrong]:
            raise ValueError(
                f"{method}.select() marks weights of {names[0]} that it cannot change: `prune` must mark kept "
                "weights, and `grow` pruned ones"
            )
        pruned, grown = read[len(weights) : 2 * len(weights)], read[2 * len(weights) :] or [0] * len(weights)
        left = [weight.kept - gone + back for weight, gone, back in zip(weights, pruned, grown, strict=True)]
        if sum(left) != keep:
            raise ValueError(f"{method}.select() keeps {sum(left):,} weights, but it must keep {keep:,}")
        for weight, kept, floor in zip(weights, left, floors, strict=True):
            if kept < floor:
                raise ValueError(
                    f"{method}.select() keeps {kept:,} weights of {weight.name}, but floor= asks for {floor:,}"
                )


class Event(NamedTuple):
    """The record of a pruning event: its step, the sparsity and the weights kept after it, and how many came back.

    With `target=`, `reached` is the share of the target that is pruned.

    Examples:
        >>> pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=12, scope="layer")
        >>> train()
        >>> pruner.events[-1].kept
        {'0.weight': 19, '2.weight': 7}
    """

    step: int
    sparsity: float
    nonzero: int
    kept: dict[str, int]
    grown: int = 0
    reached: float | None = None


def warn_of_dead_layers(names: Sequence[str], step: int) -> None:
    lost = f"{names[0]} lost its last weight" if len(names) == 1 else f"{', '.join(names)} lost their last weights"
    warn(
        f"{lost} at step {step}: nothing passes through there any more. Keep some weights with floor=, prune every "
        "layer by the same share with scope='layer', leave layers out with exclude=, or ask for less sparsity",
        DeadLayerWarning,
    )


@dataclass
class Progress:
    """The progress of a schedule. It outlives its pruner, to warn when the pruner is dropped too early."""

    last: int
    steps: int
    created: tuple[str, int]
    """The line that created the pruner: nobody is on the stack when it is dropped."""
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
            warn(self.complaint(), UnfinishedWarning, self.created)

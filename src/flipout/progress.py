"""How far a pruner is, and what it warns of."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple


class DeadLayerWarning(UserWarning):
    """A layer has lost its last weight, and with it everything that went through it."""


class UnfinishedWarning(UserWarning):
    """A pruner came to its end before its schedule did."""


class DivergenceWarning(UserWarning):
    """The noise asked for is too large to train with."""


class NotCompiledWarning(UserWarning):
    """What was to be compiled runs as it stands: the same results, more slowly."""


class Event(NamedTuple):
    """A pruning that took place: after which step, to which sparsity, and what each layer has left."""

    step: int
    sparsity: float
    nonzero: int
    kept: dict[str, int]


def warn_of_dead_layer(name: str, step: int) -> None:
    warnings.warn(
        f"{name} lost its last weight at step {step}: nothing passes through it any more. Keep some with floor=, leave "
        "it out with exclude=, or ask for less sparsity",
        DeadLayerWarning,
        stacklevel=3,
    )


@dataclass
class Progress:
    """How far a schedule is; it outlives its pruner, to speak up when that is dropped."""

    last: int
    steps: int
    step: int = 0
    finished: bool = False

    def complaint(self) -> str:
        """What an unfinished schedule most likely means."""
        return (
            f"the schedule is not finished: {self.step:,} optimizer steps were taken, and the last pruning is due at "
            f"step {self.last:,} of {self.steps:,}. Is steps= the number of optimizer steps? (Under gradient "
            "accumulation that is batches / accumulation.)"
        )

    def warn(self) -> None:
        """Warns if the schedule is not finished."""
        if not self.finished:
            warnings.warn(self.complaint(), UnfinishedWarning, stacklevel=3)

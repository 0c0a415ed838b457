"""Schedules: when to prune, and to what count. They are frozen, and known before training starts."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import accumulate
from numbers import Integral, Real
from typing import NamedTuple, Self

DEFAULT_PRUNINGS = 100


class Pruning(NamedTuple):
    """One pruning of a plan: after optimizer step `step` (0: before the first), `nonzero` weights are kept.

    `sparsity` and `nonzero` are None if they depend on the training (a threshold).
    """

    step: int
    sparsity: float | None
    nonzero: int | None


def nonzero(prunable: int, sparsity: float) -> int:
    """`round(prunable * (1 - sparsity))` on the decimal value of `sparsity` as written, half to even."""
    return round(prunable * (1 - Decimal(repr(float(sparsity)))))


@dataclass(frozen=True)
class Schedule:
    """Prunings spread evenly over a window of training. A subclass defines the density after each.

        >>> class Linear(flipout.Schedule):
        ...     def density(self, share: float) -> float:
        ...         return 1 - self.sparsity * share
        >>> [pruning.nonzero for pruning in Linear(0.9, steps=1000, prunings=3).plan(1000)]
        [700, 400, 100]

    Args:
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        prunings: how many times to prune; by default 100, or once per step if the window is shorter than that.
        window: the start and the end of pruning as shares of training. Pruning `i` of `n` happens at
            `start + i * (end - start) / n`, and the last one at `end`.
    """

    sparsity: float
    steps: int
    prunings: int | None = None
    window: tuple[float, float] = (0.05, 0.5)

    def __post_init__(self) -> None:
        if not isinstance(self.sparsity, Real) or not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is {self.sparsity!r}; give a share of at least 0 and below 1 (0.99 for 99 %)")
        if not isinstance(self.steps, Integral) or self.steps < 1:
            raise ValueError(f"steps is {self.steps!r}; give the number of optimizer steps of the whole training")
        if not isinstance(self.window, Sequence) or [isinstance(share, Real) for share in self.window] != [True, True]:
            raise TypeError(f"window is {self.window!r}; give start and end as shares of training, such as (0.05, 0.5)")
        start, end = self.window
        if not 0 <= start <= end <= 1:
            raise ValueError(f"window is {self.window}; give start and end as shares of training, 0 <= start <= end")
        first, last = round(start * self.steps), round(end * self.steps)
        room = last - first
        if self.prunings is None:  # the class is frozen
            object.__setattr__(self, "prunings", min(DEFAULT_PRUNINGS, max(1, room)))
        if not isinstance(self.prunings, Integral) or self.prunings < 1:
            raise ValueError(f"prunings is {self.prunings}; give a whole number of at least 1")
        if start < end and self.prunings > room:
            raise ValueError(
                f"{self.prunings} prunings do not fit into the {room} steps between {start:.0%} and {end:.0%} of "
                f"{self.steps}: train for more steps, prune fewer times, or widen the window"
            )
        if end < 1 and last >= self.steps:
            raise ValueError(
                f"the last pruning, at {end:.0%} of {self.steps} steps, leaves no step to train on afterwards: "
                "train for more steps, or use 1.0 exactly to prune at the very end"
            )

    def density(self, share: float) -> float:
        """The density after the share `0 < share <= 1` of the prunings."""
        raise NotImplementedError

    def with_sparsity(self, sparsity: float) -> Self:
        """The same prunings with another sparsity at the end."""
        new = copy.copy(self)
        object.__setattr__(new, "sparsity", sparsity)  # the class is frozen
        new.__post_init__()
        return new

    def moments(self) -> list[int]:
        """The steps after which to prune."""
        start, end = (round(share * self.steps) for share in self.window)
        count = self.prunings or 0
        return [start + round(i * (end - start) / count) for i in range(1, count + 1)]

    def plan(self, prunable: int) -> list[Pruning]:
        """Every pruning for a network of `prunable` weights; the last leaves exactly `nonzero(prunable, sparsity)`."""
        last = nonzero(prunable, self.sparsity)
        moments = self.moments()
        kept = [max(last, round(prunable * self.density(i / len(moments)))) for i in range(1, len(moments))]
        falling = accumulate([*kept, last], min)  # rounding may break the order
        return [Pruning(step, 1 - n / prunable, n) for step, n in zip(moments, falling, strict=True)]


@dataclass(frozen=True)
class Geometric(Schedule):
    """Each pruning removes the same share `r` of the remaining weights: density `(1-s)^(i/m)` after pruning `i` of `m`.

    By default there are many small prunings, which end at half of training.

        >>> for pruning in flipout.Geometric(0.9, steps=1000, prunings=2, window=(0, 0.5)).plan(1000):
        ...     print(pruning.step, pruning.nonzero)
        250 316
        500 100
    """

    def density(self, share: float) -> float:
        return float((1 - self.sparsity) ** share)

    @classmethod
    def paper(cls, sparsity: float, steps: int, rate: float = 0.5, steps_per_epoch: int = 1) -> Geometric:
        """The paper's schedule (Section 2.2, Table 1): `m` prunings, one every `ceil(E / (m+1))` of `E` epochs.

        `m = round(log(1-s) / log(1-rate))`. The share of each pruning is then adjusted so that `m` prunings reach the
        sparsity exactly. With the default `steps_per_epoch=1` the intervals are whole steps. With the real number of
        steps they are whole epochs, as in the paper.
        """
        if not 0 < rate < 1:
            raise ValueError(f"rate is {rate}; give the share to prune each time, between 0 and 1")
        if steps % steps_per_epoch:
            raise ValueError(
                f"{steps} steps are not a whole number of epochs of {steps_per_epoch} steps; give "
                "steps=epochs * steps_per_epoch"
            )
        one = cls(sparsity, steps, prunings=1, window=(0, 1))  # checks the arguments
        prunings = max(1, round(math.log(1 - sparsity) / math.log(1 - rate)))
        epochs = steps // steps_per_epoch
        interval = math.ceil(epochs / (prunings + 1))
        if prunings * interval >= epochs:
            unit = "steps" if steps_per_epoch == 1 else "epochs"
            raise ValueError(
                f"{epochs} {unit} are too few for {prunings} prunings, one every {interval}, and training after the "
                "last: train longer, raise rate" + ("" if steps_per_epoch == 1 else ", or leave steps_per_epoch at 1")
            )
        return replace(one, prunings=prunings, window=(0, prunings * interval / epochs))


@dataclass(frozen=True)
class Cubic(Schedule):
    """Zhu and Gupta (2017): sparsity `s * (1 - (1 - i/m)^3)` after pruning `i` of `m`, fast at first, then more slowly.

    Examples:
        >>> [pruning.nonzero for pruning in flipout.Cubic(0.9, steps=1000, prunings=3).plan(1000)]
        [367, 133, 100]
    """

    def density(self, share: float) -> float:
        return 1 - self.sparsity * (1 - (1 - share) ** 3)


@dataclass(frozen=True)
class OneShot(Schedule):
    """One pruning, at the share `at` of training: 0 is before the first step, 1 after the last.

    Examples:
        >>> [(pruning.step, pruning.nonzero) for pruning in flipout.OneShot(0.9, steps=1000, at=0.3).plan(1000)]
        [(300, 100)]
    """

    def __init__(self, sparsity: float, steps: int, at: float = 0.5) -> None:
        super().__init__(sparsity, steps, 1, (at, at))

    def density(self, share: float) -> float:
        return 1 - self.sparsity


@dataclass(frozen=True)
class Constant(Schedule):
    """The full sparsity from the start: one pruning before the first step, then events that leave the count as it is.

    For methods that prune and grow the same number of weights at each event.

        >>> schedule = flipout.Constant(0.9, steps=1000, prunings=2, window=(0, 0.5))
        >>> [(pruning.step, pruning.nonzero) for pruning in schedule.plan(1000)]
        [(0, 100), (250, 100), (500, 100)]
    """

    def density(self, share: float) -> float:
        return 1 - self.sparsity

    def moments(self) -> list[int]:
        return [0, *super().moments()]

    def plan(self, prunable: int) -> list[Pruning]:
        kept = nonzero(prunable, self.sparsity)
        return [Pruning(step, 1 - kept / prunable, kept) for step in self.moments()]


@dataclass(frozen=True)
class Never(Schedule):
    """No pruning."""

    def __init__(self, steps: int = 1) -> None:
        super().__init__(0.0, steps, 1, (1, 1))

    def moments(self) -> list[int]:
        return []

    def plan(self, prunable: int) -> list[Pruning]:
        return []


@dataclass(frozen=True)
class AtThreshold(OneShot):
    """One pruning with a sparsity that depends on the training: the method decides then how many weights to keep."""

    def __init__(self, steps: int, at: float = 0.5) -> None:
        super().__init__(0.0, steps, at)

    def plan(self, prunable: int) -> list[Pruning]:
        return [Pruning(step, None, None) for step in self.moments()]

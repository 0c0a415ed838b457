"""What is tracked of a weight tensor for the criteria, only if one asks for it by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .kernels import note_signs, read_flips, wide
from .noise import uniform as uniform_numbers


@dataclass(frozen=True)
class Place:
    """Where a weight tensor stands: its number among the parameters of the model, and the seed of the pruner."""

    tensor: int = 0
    seed: int = 0


class Statistic:
    """One statistic of one weight tensor. What it keeps between steps is `state`, and that alone is saved.

    A statistic of your own overrides what it needs, and is given to a pruner as `statistics={"name": YourStatistic}`.
    """

    looks_before: ClassVar[bool] = False
    """Whether there is a `before` to call."""

    def __init_subclass__(cls) -> None:
        cls.looks_before = cls.before is not Statistic.before

    def __init__(self, weight: Tensor, place: Place) -> None:
        self.place = place
        self.state: dict[str, Tensor] = {}

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        """Called before each optimizer step; the gradient is unscaled, masked and without noise."""

    def after(self, weight: Tensor, alive: Tensor) -> None:
        """Called after each optimizer step; `alive` is the mask."""

    def loaded(self) -> None:
        """Called when another state was loaded."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        """What the criterion is given: a tensor of the weight's shape."""
        raise NotImplementedError


class Weight(Statistic):
    """The weight itself, in float32 at least, so that a power of a half-precision weight does not vanish."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        return wide(weight)


class Flips(Statistic):
    """How many optimizer steps changed the weight's sign, of -1, 0 and 1 (Eq. 1b); frozen where pruned.

    Two bytes hold the sign before the current step and a count of up to `kernels.LIMIT`. The pruner does the counting
    along with the masking, in one loop (`kernels.count_flips`).
    """

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["low"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.state["high"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.loaded()

    @property
    def planes(self) -> tuple[Tensor, Tensor]:
        return self.state["low"], self.state["high"]

    def note(self, weight: Tensor) -> None:
        """Before a step: what else changes a weight between steps is not a flip, so the signs are read anew if
        something has. (Torch counts the changes of a tensor. It does not see those made inside of `.data`.)"""
        if (weight._version, weight.data_ptr()) != self._seen:
            note_signs(weight, self.state["high"])

    def seen(self, weight: Tensor) -> None:
        """The signs noted are those of the weight as it is now."""
        self._seen = weight._version, weight.data_ptr()

    def loaded(self) -> None:
        self._seen = -1, 0

    def value(self, weight: Tensor, step: int) -> Tensor:
        return read_flips(*self.planes)


class Gradient(Statistic):
    """The latest gradient of the loss: masked, without noise."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["grad"] = torch.zeros_like(weight)

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        if grad is not None:
            self.state["grad"].copy_(grad)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["grad"]


class Deviation(Statistic):
    """The standard deviation of the weight's recent values, from exponentially weighted moments of a horizon.

    The newest value counts `1/t` up to step `t = horizon`, and `1/horizon` from then on: exactly the deviation of all
    values so far at first, and of about the last `horizon` later.
    """

    def __init__(self, weight: Tensor, place: Place, *, horizon: int = 100) -> None:
        super().__init__(weight, place)
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; give how many recent values count, at least 1")
        self.horizon = horizon
        self.state["count"] = torch.zeros((), dtype=torch.int64, device="cpu")
        self.state["mean"] = torch.zeros_like(weight, dtype=torch.float32)
        self.state["variance"] = torch.zeros_like(weight, dtype=torch.float32)

    def after(self, weight: Tensor, alive: Tensor) -> None:
        self.state["count"] += 1
        newest = 1 / min(int(self.state["count"]), self.horizon)
        off = weight.float() - self.state["mean"]
        self.state["mean"].add_(off, alpha=newest)
        self.state["variance"].addcmul_(off, off, value=newest).mul_(1 - newest)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["variance"].sqrt()


class Uniform(Statistic):
    """Uniform random numbers, other ones at each step, computed from the pruner's seed: the same when asked again."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        return uniform_numbers(
            weight.shape, seed=self.place.seed, step=step, tensor=self.place.tensor, device=weight.device
        )


STATISTICS: dict[str, type[Statistic]] = {
    "weight": Weight,
    "grad": Gradient,
    "flips": Flips,
    "std": Deviation,
    "uniform": Uniform,
}

"""What the methods share: the options that they pass on to `Pruner`, and how a schedule can be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from ..granularity import GranularityChoice, Reduction
from ..layers import Patterns
from ..revival import Revival
from ..runtime.compiler import Compile
from ..runtime.noise import GradientNoise
from ..schedules import Geometric, Schedule


class InSteps:
    """Marks an option that counts optimizer steps: `Annotated[int, InSteps]`. The lab takes such options in epochs."""


ScheduleChoice = Schedule | Callable[[float, int], Schedule] | Literal["paper"] | None
"""A schedule, a function that makes one of (sparsity, steps), "paper", or None for the default `Geometric`."""


class BasicOptions(TypedDict, total=False):
    """The options of every method, also of one that does not prune; see `Pruner`."""

    include: Patterns | None
    exclude: Patterns | None
    seed: int
    compile: Compile


class CommonOptions(BasicOptions, total=False):
    """The options of every method that prunes; see `Pruner`."""

    scope: Literal["global", "layer"]
    floor: int | float
    granularity: GranularityChoice
    reduce: Reduction
    dead_first: bool


class GradualOptions(CommonOptions, total=False):
    """The options of every method that prunes under a schedule during training."""

    revival: Revival | bool | None


class NoiseOptions(BasicOptions, total=False):
    """The options of a method that does not prune, and gradient noise."""

    noise: GradientNoise | float | None


class Options(CommonOptions, total=False):
    """The options of a method that prunes, and gradient noise."""

    noise: GradientNoise | float | None


class NoisyGradualOptions(GradualOptions, Options, total=False):
    """The options of a method that prunes under a schedule during training, and gradient noise."""


def schedule_for(choice: ScheduleChoice, sparsity: float, steps: int) -> Schedule:
    """The schedule of a method, from what the user passed."""
    if choice is None:
        return Geometric(sparsity, steps)
    if isinstance(choice, Schedule):
        for name, given in (("sparsity", sparsity), ("steps", steps)):
            if getattr(choice, name) != given:
                raise ValueError(
                    f"the schedule has {name}={getattr(choice, name)}, but the method has {name}={given}; use the "
                    "same value for both, or pass a function of (sparsity, steps) as the schedule"
                )
        return choice
    if callable(choice):
        return choice(sparsity, steps)
    if choice == "paper":
        return Geometric.paper(sparsity, steps)
    raise ValueError(f"schedule is {choice!r}; give a schedule such as Cubic({sparsity}, {steps}), or 'paper'")

"""What the methods share: the options they hand on to `Pruner`, and how a schedule may be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from ..layers import Patterns
from ..noise import GradientNoise
from ..runtime.compiler import Compile
from ..schedules import Geometric, Schedule


class InSteps:
    """Marks an option that counts optimizer steps: `Annotated[int, InSteps]`. The lab takes such options in epochs."""


ScheduleChoice = Schedule | Callable[[float, int], Schedule] | Literal["paper"] | None
"""A schedule, something that makes one of (sparsity, steps), the paper's, or (None) the default `Geometric`."""


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


class NoiseOptions(BasicOptions, total=False):
    """The options of a method that does not prune, and gradient noise."""

    noise: GradientNoise | float | None


class Options(CommonOptions, total=False):
    """The options of a method that prunes, and gradient noise."""

    noise: GradientNoise | float | None


def schedule_for(choice: ScheduleChoice, sparsity: float, steps: int) -> Schedule:
    """The schedule that a method was asked for."""
    if choice is None:
        return Geometric(sparsity, steps)
    if isinstance(choice, Schedule):
        for name, given in (("sparsity", sparsity), ("steps", steps)):
            if getattr(choice, name) != given:
                raise ValueError(
                    f"the schedule says {name}={getattr(choice, name)}, the method {name}={given}; give both the same, "
                    "or a function of (sparsity, steps) as the schedule"
                )
        return choice
    if callable(choice):
        return choice(sparsity, steps)
    if choice == "paper":
        return Geometric.paper(sparsity, steps)
    raise ValueError(f"schedule is {choice!r}; give a schedule such as Cubic({sparsity}, {steps}), or 'paper'")

"""What the methods share: the options that they pass on to `Pruner`, and how a schedule can be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from ..forms import Form, SecondChances
from ..kernels import SparseKernelsChoice
from ..limits import Floor
from ..runtime.compiler import Compile
from ..runtime.noise import GradientNoise
from ..schedules import Geometric, Schedule
from ..units import GranularityChoice, Reduction, Target
from ..weights import Patterns


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
    sparse_kernels: SparseKernelsChoice


class CommonOptions(BasicOptions, total=False):
    """The options of every method that prunes; see `Pruner`."""

    scope: Literal["global", "layer"]
    floor: Floor
    granularity: GranularityChoice
    reduce: Reduction
    target: Target
    round_to: int
    residual: bool
    dead_first: bool


class NoiseOptions(BasicOptions, total=False):
    """The options of a method that does not prune, and gradient noise."""

    noise: GradientNoise | float | None


class Options(CommonOptions, total=False):
    """The options of a method that prunes, and gradient noise."""

    noise: GradientNoise | float | None


class CriterionOptions(Options, total=False):
    """The options of a method that prunes by a criterion during training; see `Pruner`."""

    second_chances: SecondChances | bool | None
    form: Form | None


class WindowOptions(CommonOptions, total=False):
    """The options of `Gradual` without noise and second chances."""

    start: float | None
    end: float | None
    schedule: ScheduleChoice
    form: Form | None


class OwnFormOptions(Options, total=False):
    """The options of a method that prunes during training and has a form of its own."""

    start: float | None
    end: float | None
    schedule: ScheduleChoice


class NoisyWindowOptions(WindowOptions, Options, total=False):
    """The options of `Gradual` without second chances."""


class GradualOptions(WindowOptions, CriterionOptions, total=False):
    """The options of `Gradual`."""


def schedule_for(
    choice: ScheduleChoice,
    sparsity: float,
    steps: int,
    start: float | None = None,
    end: float | None = None,
    default: type[Schedule] = Geometric,
) -> Schedule:
    """The schedule of a method, from what the user passed."""
    if choice is None or isinstance(choice, type):
        cls: type[Schedule] = default if choice is None else choice
        if start is None and end is None:
            return cls(sparsity, steps)
        usual = cls.window
        return cls(sparsity, steps, window=(usual[0] if start is None else start, usual[1] if end is None else end))
    if start is not None or end is not None:
        raise ValueError("start= and end= say when to prune, and so does schedule=: give one of them")
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

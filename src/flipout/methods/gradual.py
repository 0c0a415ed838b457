"""Methods that prune by a criterion, gradually, under a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from numbers import Real
from typing import ClassVar, Unpack

import torch
from torch import nn

from .. import criteria
from ..criteria import Criterion
from ..forms import SecondChances
from ..limits import Sparsity, largest
from ..pruner import Pruner
from ..runtime.noise import GradientNoise
from ..runtime.tracking import StatisticMaker
from ..schedules import Geometric, Schedule
from ..statistics import Deviation, Flips, SquaredGradient
from .options import CommonOptions, CriterionOptions, GradualOptions, ScheduleChoice, WindowOptions, schedule_for
from .registry import register


class Gradual(Pruner):
    """Prune by a criterion, under a schedule: many small prunings between 5 and 50 % of training by default.

    A method without options of its own names its criterion in `ranks_by`:

        >>> class LargestFirst(flipout.Gradual):
        ...     ranks_by = staticmethod(lambda weight: -weight.abs())
        >>> pruner = LargestFirst(model, optimizer, sparsity=0.9, steps=steps, end=0.3)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end, or shares by name pattern:
            `{"classifier.*": 0.5, "*": 0.9}`. The first pattern that matches counts. Weights that no pattern matches
            are left alone.
        steps: the number of optimizer steps of the whole training.
        start: the share of training at which pruning starts; 0.05 by default.
        end: the share of training at which it ends; 0.5 by default.
        schedule: when to prune, in place of `start` and `end`; a schedule, a function that makes one of
            (sparsity, steps), or "paper".
        options: see `Pruner`.
    """

    ranks_by: ClassVar[Criterion]
    default_schedule: ClassVar[type[Schedule]] = Geometric

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        start: float | None = None,
        end: float | None = None,
        schedule: ScheduleChoice = None,
        criterion: Criterion | None = None,
        statistics: Mapping[str, StatisticMaker] | None = None,
        **options: Unpack[CriterionOptions],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            criterion=type(self).ranks_by if criterion is None else criterion,
            schedule=schedule_for(schedule, largest(sparsity), steps, start, end, self.default_schedule),
            sparsities=sparsity if isinstance(sparsity, Mapping) else None,
            statistics=statistics,
            **options,
        )


@register(
    "flipout",
    title="FlipOut",
    about="weights that flip their sign often; pruned ones keep learning and can come back",
    colour="#0072b2",
)
class FlipOut(Gradual):
    """FlipOut with second chances: prune the weights with the lowest `|theta|^p / (flips + 1)`.

    Pruned weights keep a hidden value that learns, and flips are counted on it. Until 70 % of training a hidden weight
    that moves away from zero comes back, and one that keeps crossing zero stays out. See `SecondChances`.

        >>> chances = flipout.SecondChances(until=0.6)  # True is 0.7
        >>> pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=12, second_chances=chances)
        >>> pruner
        FlipOut(step 0 of 12, 0 of 6 prunings, 256 of 256 weights kept in 2 layers, sparsity 0.0000%)

    `FlipOut.paper` is the method of the paper. For further arguments see `Gradual`.

    Args:
        p: power of the magnitude in the saliency; the larger it is, the less flips count.
        horizon: the number of steps after which a flip has faded to 1/e of its count; None never forgets a flip.
        noise: scale of the gradient noise, the paper's lambda, or a `GradientNoise`; None or 0 is no noise.
        second_chances: how pruned weights may come back; None prunes permanently.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        p: float = 4.0,
        horizon: int | None = 100,
        noise: GradientNoise | float | None = None,
        second_chances: SecondChances | bool | None = True,
        **options: Unpack[WindowOptions],
    ) -> None:
        if not isinstance(p, Real):
            raise TypeError(f"p is {p!r}; give the power of the magnitude as a number")
        if not 0 <= p < math.inf:
            raise ValueError(f"p is {p}; give at least 0: a negative power prunes the largest weights first")
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            criterion=partial(criteria.flip_saliency, p=p),
            statistics={"flips": partial(Flips, horizon=horizon)},
            noise=noise,
            second_chances=second_chances if options.get("form") is None else None,
            **options,
        )

    @staticmethod
    def paper(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        steps_per_epoch: int = 1,
        **options: Unpack[CommonOptions],
    ) -> PaperFlipOut:
        """FlipOut as in the paper: lambda = 1, p = 2, halvings at the ends of epochs, permanent pruning.

            >>> pruner = flipout.FlipOut.paper(model, optimizer, sparsity=0.875, steps=12, steps_per_epoch=3)
            >>> print(pruner.plan())
            step  sparsity  weights kept
            ----------------------------
            3     50.0000%           128
            6     75.0000%            64
            9     87.5000%            32

        Args:
            model: the network.
            optimizer: the optimizer that trains it.
            sparsity: the share of weights that are pruned at the end.
            steps: the number of optimizer steps of the whole training.
            steps_per_epoch: the number of optimizer steps of an epoch; with 1 the intervals are whole steps.
            options: see `Pruner`.
        """
        schedule = Geometric.paper(sparsity, steps, steps_per_epoch=steps_per_epoch)
        return PaperFlipOut(model, optimizer, sparsity=sparsity, steps=steps, schedule=schedule, **options)


@register(
    "flipout-paper",
    title="FlipOut (paper)",
    about="weights that flip their sign often, with gradient noise, permanently",
    colour="#3a9bd9",
)
class PaperFlipOut(FlipOut):
    """FlipOut as in the paper (Sec. 2.2): `|theta|^p / (flips + 1)`, gradient noise, and permanent pruning.

    `FlipOut.paper` creates one with the schedule of the paper. Here the default schedule is ours:

        >>> pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=steps, noise=0.5)

    For further arguments see `FlipOut` and `Gradual`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        p: float = 2.0,
        horizon: int | None = None,
        noise: GradientNoise | float | None = 1.0,
        second_chances: SecondChances | bool | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            p=p,
            horizon=horizon,
            noise=noise,
            second_chances=second_chances,
            **options,
        )


@register("magnitude", title="Global magnitude", about="the smallest weights", colour="#d55e00")
class GlobalMagnitude(Gradual):
    """Prune the smallest weights. With noise it is the paper's ablation, with `scope="layer"` Han et al.'s method.

        >>> pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=steps, scope="layer")

    For the arguments see `Gradual`.
    """

    ranks_by = staticmethod(criteria.magnitude)


@register("random", title="Random", about="random weights: the control", colour="#8a8a8a")
class Random(Gradual):
    """Prune random weights: the control.

        >>> pruner = flipout.Random(model, optimizer, sparsity=0.9, steps=steps, seed=1)

    For the arguments see `Gradual`.
    """

    ranks_by = staticmethod(criteria.random)


@register("magnitude-uncertainty", title="M&U", about="small weights that vary a lot during training", colour="#b8860b")
class MagnitudeUncertainty(Gradual):
    """M&U (Ko et al., 2019): prune the lowest `|theta| / (lambda + std(theta))`, std over about `horizon` steps.

    A small `lambda_` keeps weights that do not move, whether or not they matter. With inputs that are always zero
    (the border of an image) the network collapses.

        >>> pruner = flipout.MagnitudeUncertainty(model, optimizer, sparsity=0.9, steps=steps, lambda_=0.1, horizon=100)

    For further arguments see `Gradual`.

    Args:
        lambda_: added to the deviation of a weight; 0 is the Wald test.
        horizon: the number of recent values that the deviation is taken over.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        lambda_: float = 0.1,
        horizon: int = 100,
        **options: Unpack[GradualOptions],
    ) -> None:
        if not 0 <= lambda_ < math.inf:
            raise ValueError(f"lambda_ is {lambda_}; give a number of at least 0 (0: the Wald test)")
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            criterion=partial(criteria.magnitude_uncertainty, lambda_=lambda_),
            statistics={"std": partial(Deviation, horizon=horizon)},
            **options,
        )


@register(
    "relative-magnitude",
    title="Relative magnitude",
    about="the smallest weights, relative to the size of their layer",
    colour="#a04000",
)
class RelativeMagnitude(Gradual):
    """Prune the lowest `|theta| * sqrt(fan_in)`, where `fan_in` is the number of weights that feed one output.

    Layers are initialized with weights of the size `1 / sqrt(fan_in)`. The factor makes layers comparable, so that wide
    layers are not pruned just because their weights start smaller.

        >>> pruner = flipout.RelativeMagnitude(model, optimizer, sparsity=0.9, steps=steps)
    """

    ranks_by = staticmethod(criteria.relative_magnitude)


@register("lamp", title="LAMP", about="weights that are small against the larger ones of their layer", colour="#1a9850")
class LAMP(Gradual):
    """LAMP (Lee et al., 2021): prune the lowest `theta^2 / (sum of theta^2 over the layer's weights not smaller)`.

    Each layer is pruned in the order of magnitude, and the scores decide how much of each layer is pruned. No layer
    loses its last weight before every layer is down to one weight.

        >>> pruner = flipout.LAMP(model, optimizer, sparsity=0.9, steps=steps)
    """

    ranks_by = staticmethod(criteria.lamp)


@register("fisher", title="Fisher", about="weights whose removal changes the loss the least", colour="#6a3d9a")
class Fisher(Gradual):
    """Optimal Brain Damage with the diagonal Fisher: prune the lowest `theta^2 * mean(g^2)^power`.

    The mean is over about the last `horizon` gradients of the weight, without noise.

        >>> pruner = flipout.Fisher(model, optimizer, sparsity=0.9, steps=steps, power=0.5)

    For further arguments see `Gradual`.

    Args:
        power: power of the mean squared gradient; 1 is Optimal Brain Damage, 0 is magnitude.
        horizon: the number of recent gradients that the mean is taken over.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        power: float = 1.0,
        horizon: int = 100,
        **options: Unpack[GradualOptions],
    ) -> None:
        if not 0 <= power < math.inf:
            raise ValueError(f"power is {power}; give a number of at least 0 (1: Optimal Brain Damage)")
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            criterion=partial(criteria.fisher_saliency, power=power),
            statistics={"fisher": partial(SquaredGradient, horizon=horizon)},
            **options,
        )

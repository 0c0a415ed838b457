"""The methods that prune step by step under a schedule, and the two that do not prune at all."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import nn

from .. import criteria
from ..noise import GradientNoise
from ..pruner import Criterion, Pruner
from ..schedules import Never
from ..statistics import Deviation
from .options import CommonOptions, NoiseOptions, Options, ScheduleChoice, schedule_for
from .registry import register


@register("flipout", title="FlipOut", about="weights that flip their sign often, with gradient noise", colour="#0072b2")
class FlipOut(Pruner):
    """FlipOut (Sec. 2.2): prunes the lowest `|theta|^p / (flips + 1)`, with gradient noise.

    `schedule="paper"` is the paper's to the letter. `noise` is the paper's lambda, or a `GradientNoise`; 0 is none.

        pruner = flipout.FlipOut(model, optimizer, sparsity=0.99, steps=epochs * len(loader))
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        p: float = 2.0,
        noise: GradientNoise | float | None = 1.0,
        schedule: ScheduleChoice = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        if not 0 <= p < math.inf:
            raise ValueError(f"p is {p}; give a number of at least 0: with a negative one the largest weights go first")
        super().__init__(
            model,
            optimizer,
            criterion=partial(criteria.flip_saliency, p=p),
            schedule=schedule_for(schedule, sparsity, steps),
            noise=noise,
            **options,
        )


class _Scored(Pruner):
    """A criterion without settings, under a schedule."""

    score: ClassVar[Criterion]

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        schedule: ScheduleChoice = None,
        **options: Unpack[Options],
    ) -> None:
        planned = schedule_for(schedule, sparsity, steps)
        super().__init__(model, optimizer, criterion=type(self).score, schedule=planned, **options)


@register("magnitude", title="Global magnitude", about="the smallest weights", colour="#d55e00")
class GlobalMagnitude(_Scored):
    """Prunes the smallest weights. With noise it is the paper's ablation, with `scope="layer"` Han et al.'s method.

    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.99, steps=steps)
    """

    score = staticmethod(criteria.magnitude)


@register("random", title="Random", about="random weights: the control", colour="#8a8a8a")
class Random(_Scored):
    """Prunes any weight as soon as any other: the control.

    pruner = flipout.Random(model, optimizer, sparsity=0.99, steps=steps, seed=1)
    """

    score = staticmethod(criteria.random)


@register("magnitude-uncertainty", title="M&U", about="small weights that vary a lot during training", colour="#b8860b")
class MagnitudeUncertainty(Pruner):
    """M&U (Ko et al., 2019): prunes the lowest `|theta| / (lambda + std(theta))`, std over about `horizon` steps.

    A small `lambda_` keeps weights that do not move, whether or not they matter: with inputs that are always zero
    (the border of an image) the network collapses.

        pruner = flipout.MagnitudeUncertainty(model, optimizer, sparsity=0.99, steps=steps, lambda_=0.1, horizon=100)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        lambda_: float = 0.1,
        horizon: int = 100,
        schedule: ScheduleChoice = None,
        **options: Unpack[Options],
    ) -> None:
        if not 0 <= lambda_ < math.inf:
            raise ValueError(f"lambda_ is {lambda_}; give a number of at least 0 (0: the Wald test)")
        super().__init__(
            model,
            optimizer,
            criterion=partial(criteria.magnitude_uncertainty, lambda_=lambda_),
            schedule=schedule_for(schedule, sparsity, steps),
            statistics={"std": partial(Deviation, horizon=horizon)},
            **options,
        )


@register("dense", title="Dense", about="nothing: the reference", colour="#333333")
class Dense(Pruner):
    """No pruning: the reference. Takes `sparsity` like every method, and ignores it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float = 0.0,
        steps: int = 1,
        **options: Unpack[NoiseOptions],
    ) -> None:
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=Never(steps), **options)


@register("keep-zeros", title="Keep zeros", about="nothing, but keeps the zeros of --init", colour="#666666")
class KeepZeros(Dense):
    """No pruning of its own: keeps the zeros a network already has, to fine-tune a pruned one.

    pruner = flipout.KeepZeros(model, optimizer)
    """

    def _begin(self) -> None:
        for layer in self.layers:
            layer.mask = layer.weight.detach() != 0
            layer.count()

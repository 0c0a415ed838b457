"""Methods that differ from global magnitude in the score of a weight alone."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from torch import nn

from .. import criteria
from ..pruner import Pruner
from ..statistics import SquaredGradient
from .gradual import _Scored
from .options import NoisyGradualOptions, ScheduleChoice, schedule_for
from .registry import register


@register(
    "relative-magnitude",
    title="Relative magnitude",
    about="the smallest weights, relative to the size of their layer",
    colour="#a04000",
)
class RelativeMagnitude(_Scored):
    """Prune the lowest `|theta| * sqrt(fan_in)`, where `fan_in` is the number of weights that feed one output.

    Layers are initialized with weights of the size `1 / sqrt(fan_in)`. The factor makes layers comparable, so that wide
    layers are not pruned just because their weights start smaller.

        pruner = flipout.RelativeMagnitude(model, optimizer, sparsity=0.99, steps=steps)
    """

    ranks_by = staticmethod(criteria.relative_magnitude)


@register("lamp", title="LAMP", about="weights that are small against the larger ones of their layer", colour="#1a9850")
class LAMP(_Scored):
    """LAMP (Lee et al., 2021): prune the lowest `theta^2 / (sum of theta^2 over the layer's weights not smaller)`.

    Each layer is pruned in the order of magnitude, and the scores decide how much of each layer. No layer dies before
    every layer is down to one weight.

        pruner = flipout.LAMP(model, optimizer, sparsity=0.99, steps=steps)
    """

    ranks_by = staticmethod(criteria.lamp)


@register("fisher", title="Fisher", about="weights whose removal changes the loss the least", colour="#6a3d9a")
class Fisher(Pruner):
    """Optimal Brain Damage with the diagonal Fisher: prune the lowest `theta^2 * mean(g^2)^power`.

    The mean is over about the last `horizon` gradients of the weight, without noise.

        pruner = flipout.Fisher(model, optimizer, sparsity=0.99, steps=steps, power=0.5)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        power: power of the mean squared gradient; 1 is Optimal Brain Damage, 0 is magnitude.
        horizon: the number of recent gradients that the mean is taken over.
        schedule: when to prune; see `FlipOut`.
        options: see `Pruner`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        power: float = 1.0,
        horizon: int = 100,
        schedule: ScheduleChoice = None,
        **options: Unpack[NoisyGradualOptions],
    ) -> None:
        if not 0 <= power < math.inf:
            raise ValueError(f"power is {power}; give a number of at least 0 (1: Optimal Brain Damage)")
        super().__init__(
            model,
            optimizer,
            criterion=partial(criteria.fisher_saliency, power=power),
            schedule=schedule_for(schedule, sparsity, steps),
            statistics={"fisher": partial(SquaredGradient, horizon=horizon)},
            **options,
        )

"""Methods that prune gradually under a schedule, and the two that do not prune."""

from __future__ import annotations

import math
import warnings
from functools import partial
from numbers import Real
from typing import ClassVar, Unpack

import torch
from torch import nn

from .. import criteria
from ..criteria import Criterion
from ..layers import count_layers
from ..pruner import Pruner
from ..runtime.noise import GradientNoise
from ..schedules import Never
from ..selection.host_numbers import read_integers
from ..statistics import Deviation
from ..warnings import KeepZerosWarning
from .options import CommonOptions, NoiseOptions, Options, ScheduleChoice, schedule_for
from .registry import register


@register("flipout", title="FlipOut", about="weights that flip their sign often, with gradient noise", colour="#0072b2")
class FlipOut(Pruner):
    """FlipOut (Sec. 2.2): prune the weights with the lowest `|theta|^p / (flips + 1)`, with gradient noise.

    `schedule="paper"` is the schedule of the paper.

        pruner = flipout.FlipOut(model, optimizer, sparsity=0.99, steps=epochs * len(loader))

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        p: power of the magnitude in the saliency.
        noise: scale of the gradient noise, the paper's lambda, or a `GradientNoise`; 0 is no noise.
        schedule: when to prune; a schedule, a function that makes one of (sparsity, steps), or "paper".
        options: see `Pruner`.
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
        if not isinstance(p, Real):
            raise TypeError(f"p is {p!r}; give the power of the magnitude as a number")
        if not 0 <= p < math.inf:
            raise ValueError(f"p is {p}; give at least 0: a negative power prunes the largest weights first")
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

    ranks_by: ClassVar[Criterion]

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
        super().__init__(model, optimizer, criterion=type(self).ranks_by, schedule=planned, **options)


@register("magnitude", title="Global magnitude", about="the smallest weights", colour="#d55e00")
class GlobalMagnitude(_Scored):
    """Prune the smallest weights. With noise it is the paper's ablation, with `scope="layer"` Han et al.'s method.

    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.99, steps=steps)
    """

    ranks_by = staticmethod(criteria.magnitude)


@register("random", title="Random", about="random weights: the control", colour="#8a8a8a")
class Random(_Scored):
    """Prune random weights: the control.

    pruner = flipout.Random(model, optimizer, sparsity=0.99, steps=steps, seed=1)
    """

    ranks_by = staticmethod(criteria.random)


@register("magnitude-uncertainty", title="M&U", about="small weights that vary a lot during training", colour="#b8860b")
class MagnitudeUncertainty(Pruner):
    """M&U (Ko et al., 2019): prune the lowest `|theta| / (lambda + std(theta))`, std over about `horizon` steps.

    A small `lambda_` keeps weights that do not move, whether or not they matter. With inputs that are always zero
    (the border of an image) the network collapses.

        pruner = flipout.MagnitudeUncertainty(model, optimizer, sparsity=0.99, steps=steps, lambda_=0.1, horizon=100)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        lambda_: added to the deviation of a weight; 0 is the Wald test.
        horizon: the number of recent values that the deviation is taken over.
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
    """No pruning: the reference. Accepts `sparsity` like every method, and ignores it."""

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
    """Keep the zeros that a network already has, to fine-tune a pruned one.

    A tensor of zeros alone was not pruned but initialised so, like `lora_B` of an adapter. Such tensors, and all
    `lora_A` and `lora_B`, stay trainable as a whole; a `KeepZerosWarning` names them. With `include=` you decide
    yourself: what it selects is kept as it is.

        pruner = flipout.KeepZeros(model, optimizer)
    """

    covers_adapters = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float = 0.0,
        steps: int = 1,
        **options: Unpack[NoiseOptions],
    ) -> None:
        self._chosen = options.get("include") is not None
        super().__init__(model, optimizer, sparsity=sparsity, steps=steps, **options)

    def start(self) -> None:
        zeros = [layer.weight.detach() == 0 for layer in self.layers]
        empty = read_integers([zero.all() for zero in zeros])
        left_alone = []
        for layer, zero, all_zero in zip(self.layers, zeros, empty, strict=True):
            adapter = not {"lora_A", "lora_B"}.isdisjoint(layer.name.split("."))
            if not self._chosen and layer.weight.numel() and (all_zero or adapter):
                left_alone.append(layer.name)
                layer.mask = torch.ones_like(zero)  # start() may be called again, with other weights
            else:
                layer.mask = ~zero
        count_layers(self.layers)
        if left_alone:
            warnings.warn(
                f"{', '.join(left_alone)} stays trainable as a whole: a tensor of zeros alone, or a LoRA adapter, was "
                "initialised with zeros, not pruned. To keep its zeros too, select the weights with include=; to leave "
                "it to the optimizer alone, use exclude=",
                KeepZerosWarning,
                stacklevel=5,
            )

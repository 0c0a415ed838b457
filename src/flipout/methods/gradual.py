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
from ..layers import count_layers, count_marks
from ..pruner import Pruner
from ..revival import Revival
from ..runtime.noise import GradientNoise
from ..schedules import Geometric, Never
from ..statistics import Deviation, Flips
from ..warnings import KeepZerosWarning
from .options import CommonOptions, NoiseOptions, NoisyGradualOptions, ScheduleChoice, schedule_for
from .registry import register


@register(
    "flipout",
    title="FlipOut",
    about="weights that flip their sign often; pruned ones keep learning and can come back",
    colour="#0072b2",
)
class FlipOut(Pruner):
    """FlipOut with second chances: prune the weights with the lowest `|theta|^p / (flips + 1)`.

    Pruned weights keep a hidden value that goes on learning, and flips are counted on it. Until 70 % of training a
    hidden weight that moves away from zero comes back, and one that keeps crossing zero stays out. See `Revival`.

        pruner = flipout.FlipOut(model, optimizer, sparsity=0.99, steps=epochs * len(loader))

    `FlipOut.paper` is the method of the paper.

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        p: power of the magnitude in the saliency; the larger, the less do flips count.
        horizon: the number of steps after which a flip has faded to 1/e of its count; None never forgets one.
        noise: scale of the gradient noise, the paper's lambda, or a `GradientNoise`; None or 0 is no noise.
        revival: how pruned weights may come back; None prunes for good.
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
        p: float = 4.0,
        horizon: int | None = 100,
        noise: GradientNoise | float | None = None,
        revival: Revival | bool | None = True,
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
            statistics={"flips": partial(Flips, horizon=horizon)},
            noise=noise,
            revival=revival,
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
        """FlipOut as in the paper: lambda = 1, p = 2, halvings at the ends of epochs, pruning for good.

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
    about="weights that flip their sign often, with gradient noise, for good",
    colour="#3a9bd9",
)
class PaperFlipOut(FlipOut):
    """FlipOut as in the paper (Sec. 2.2): `|theta|^p / (flips + 1)`, gradient noise, and pruning for good.

    `FlipOut.paper` creates one with the schedule of the paper. Here the default schedule is ours.

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        p: power of the magnitude in the saliency.
        horizon: the number of steps after which a flip has faded to 1/e of its count; None never forgets one.
        noise: scale of the gradient noise, the paper's lambda, or a `GradientNoise`; None or 0 is no noise.
        revival: how pruned weights may come back; None prunes for good.
        schedule: when to prune; "paper" is the schedule of the paper.
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
        horizon: int | None = None,
        noise: GradientNoise | float | None = 1.0,
        revival: Revival | bool | None = None,
        schedule: ScheduleChoice = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            p=p,
            horizon=horizon,
            noise=noise,
            revival=revival,
            schedule=schedule,
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
        **options: Unpack[NoisyGradualOptions],
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
        **options: Unpack[NoisyGradualOptions],
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
        zeros = [layer.local.detach() == 0 for layer in self.layers]
        left_alone = []
        for layer, zero, number in zip(self.layers, zeros, count_marks(zeros, self.layers), strict=True):
            adapter = not {"lora_A", "lora_B"}.isdisjoint(layer.name.split("."))
            if not self._chosen and layer.size and (number == layer.size or adapter):
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

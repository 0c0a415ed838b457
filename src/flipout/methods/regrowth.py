"""Methods that prune by magnitude and regrow by gradient while the network trains: RigL and GraNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..events import Selection
from ..layers import Layer, count_marks
from ..pruner import Pruner
from ..runtime.scoring import comparison_type
from ..schedules import Constant, Cubic, Schedule
from ..selection import NotFiniteError, apportion, smallest
from ..selection.ranking import smallest_of_each
from .layer_densities import erdos_renyi_kernel
from .options import Options, ScheduleChoice, schedule_for
from .registry import register

Distribution = Literal["erk", "uniform", "global"]


@dataclass(frozen=True)
class Replacement(Selection):
    """A selection that grows a known number of weights, so that nobody waits for a device to count them."""

    number: int = 0

    def count_grown(self, layers: Sequence[Layer]) -> int:
        return self.number


class _Regrowing(Pruner):
    """Replaces a share of the kept weights at each event. The share falls to 0 along a cosine."""

    tracks: ClassVar[tuple[str, ...]] = ("full_grad",)
    share: float
    """The share of the kept weights that the first event replaces."""

    @property
    def regrows(self) -> bool:
        return not self.finished

    def share_at(self, number: int, events: int) -> float:
        """The share that event `number` of `events` replaces, counted from 0."""
        return self.share * (1 + math.cos(math.pi * number / events)) / 2

    def replace(self, kept: Sequence[Tensor], numbers: Sequence[int]) -> Replacement:
        """Prune a number of the weights of each layer that are still kept, those with the lowest scores, and grow as
        many that were pruned before, those with the largest gradients."""
        layers = len(self.layers)
        masks = [*kept, *(~layer.mask for layer in self.layers)]
        chosen = self._ranked(
            lambda run: smallest_of_each(self._ranks, masks, [*numbers, *numbers], pieces=[*self.pieces] * 2, **run)
        )
        return Replacement(chosen[:layers], chosen[layers:], sum(numbers))

    def grow(self, number: int) -> list[Tensor]:
        """Mark the pruned weights with the largest gradients of the whole network."""
        pruned = [~layer.mask for layer in self.layers]
        layers = len(pruned)
        return self._ranked(
            lambda run: smallest(lambda i: self._ranks(layers + i), pruned, number, pieces=self.pieces, **run)
        )

    def _ranks(self, i: int) -> Tensor:
        """The scores of layer `i`, and from the number of layers on, the gradients: the largest come first."""
        layers = len(self.layers)
        return self.score(self.layers[i]) if i < layers else -self.value(self.layers[i - layers], "full_grad").abs()

    def _ranked(self, choose: Callable[[dict[str, Any]], list[Tensor]]) -> list[Tensor]:
        dtype = comparison_type(torch.float32, {layer.weight.dtype for layer in self.layers})
        try:
            return choose({"dtype": dtype, "run": self.runner.elementwise})
        except NotFiniteError as error:
            raise self.not_finite(self.layers[error.tensor % len(self.layers)], "weights or gradients") from None

    def replaceable(self, kept: Sequence[int], share: float) -> list[int]:
        """How many of its kept weights each layer replaces: a share, but no more than its floor and its pruned weights
        allow."""
        return [
            max(0, min(round(share * number), layer.size - layer.kept, number - floor))
            for layer, number, floor in zip(self.layers, kept, self.floors, strict=True)
        ]

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"share": self.share}


def check_share(share: float) -> None:
    """Refuse a share that is none."""
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; give the share of weights to replace, between 0 and 1")


def usual_updates(steps: int) -> int:
    """The number of updates in a part of training: a weight that grows back needs a few steps to leave zero."""
    return max(1, min(50, steps // 10))


@register("rigl", title="RigL", about="the smallest weights; grows those with the largest gradients", colour="#17becf")
class RigL(_Regrowing):
    """RigL (Evci et al., 2020): the sparsity is constant from the start, and weights move to where gradients are large.

    Each update prunes the smallest weights of each layer, and grows as many of those that were pruned before, the ones
    with the largest gradients. They start at 0, without momentum. The gradients are those of the update's step.

    The distribution says how many weights each layer keeps. "erk" makes the density of a layer proportional to the sum
    of its dimensions over their product (Erdos-Renyi-kernel), and "uniform" keeps the same share of every layer. The
    initial weights are random ones. With "global" they are the largest ones of the network, and each update ranks
    weights and gradients over the whole network, so that the numbers change.

        pruner = flipout.RigL(model, optimizer, sparsity=0.9, steps=steps)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned, at every step.
        steps: the number of optimizer steps of the whole training.
        share: the share of the kept weights that the first update replaces; it falls to 0 along a cosine.
        updates: number of updates; by default 50, or one every 10 steps in a short run.
        until: the share of training at which the last update happens.
        distribution: weights of each layer, "erk", "uniform" or "global"; "erk" by default, and "uniform" with
            `scope="layer"`.
        options: see `Pruner`.
    """

    tracks = ("full_grad", "uniform")

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        share: float = 0.3,
        updates: int | None = None,
        until: float = 0.75,
        distribution: Distribution | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_share(share)
        by_layer = options.get("scope") == "layer"
        if distribution not in (None, "erk", "uniform", "global"):
            raise ValueError(f"distribution is {distribution!r}; give 'erk', 'uniform' or 'global'")
        if by_layer and distribution not in (None, "uniform"):
            raise ValueError(
                f"scope='layer' keeps the same share of every layer, and distribution={distribution!r} does not; use "
                "one of them"
            )
        if not 0 < until <= 1:
            raise ValueError(f"until is {until}; give the share of training at which the last update happens")
        self.share = share
        self.distribution: Distribution = distribution or ("uniform" if by_layer else "erk")
        updates = usual_updates(round(until * steps)) if updates is None else updates
        schedule = Constant(sparsity, steps, prunings=updates, window=(0, until))
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=schedule, **options)

    def select(self, keep: int) -> Selection:
        if not self.events:
            return super().select(keep) if self.distribution == "global" else self._random_start(keep)
        share = self.share_at(len(self.events) - 1, len(self.plan()) - 1)
        if self.distribution == "global":
            number = min(round(share * keep), self.prunable - keep, keep - sum(self.floors))
            return Replacement(super().select(keep - number).prune, self.grow(number), number)
        numbers = self.replaceable([layer.kept for layer in self.layers], share)
        return self.replace([layer.mask for layer in self.layers], numbers)

    def _random_start(self, keep: int) -> Selection:
        """Prune random weights, to the number that the distribution gives each layer."""
        shapes = [layer.weight.shape for layer in self.layers]
        if self.distribution == "erk":
            quota = erdos_renyi_kernel(shapes, keep, self.floors)
        else:
            quota = apportion([shape.numel() for shape in shapes], keep, self.floors)
        surplus = [shape.numel() - number for shape, number in zip(shapes, quota, strict=True)]
        masks = [layer.mask for layer in self.layers]
        chosen = smallest_of_each(lambda i: self.value(self.layers[i], "uniform"), masks, surplus, pieces=self.pieces)
        return Selection(chosen)

    def masks_are_stale(self) -> bool:
        return self.distribution == "global" and super().masks_are_stale()  # random masks fit all weights

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"distribution": self.distribution}


@register(
    "granet",
    title="GraNet",
    about="the smallest weights, gradually; grows some back where gradients are large",
    colour="#b15928",
)
class GraNet(_Regrowing):
    """GraNet (Liu et al., 2021): gradual magnitude pruning that lets weights grow back without a cost in sparsity.

    Each event prunes to the count that is due. Then it prunes a further share of each layer, the smallest weights, and
    grows as many that were pruned before, the ones with the largest gradients. They start at 0, without momentum. The
    count after each event is exact, and the last event ends both.

        pruner = flipout.GraNet(model, optimizer, sparsity=0.99, steps=steps)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of the whole training.
        share: the share of the kept weights that the first event replaces; it falls to 0 along a cosine.
        schedule: when to prune; `Cubic` by default. See `FlipOut`.
        options: see `Pruner`.
    """

    default_schedule: ClassVar[type[Schedule]] = Cubic

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        share: float = 0.5,
        schedule: ScheduleChoice = None,
        **options: Unpack[Options],
    ) -> None:
        check_share(share)
        self.share = share
        planned = schedule_for(schedule or self.default_schedule, sparsity, steps)
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=planned, **options)

    def select(self, keep: int) -> Selection:
        pruned = super().select(keep).prune
        left = [layer.mask & ~mark for layer, mark in zip(self.layers, pruned, strict=True)]
        share = self.share_at(len(self.events), len(self.plan()))
        replaced = self.replace(left, self.replaceable(count_marks(left, self.layers), share))
        further = [one | other for one, other in zip(pruned, replaced.prune, strict=True)]
        return Replacement(further, replaced.grow, replaced.number)

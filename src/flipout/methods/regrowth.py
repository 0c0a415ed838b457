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
from ..problems import NotFiniteError
from ..pruner import Pruner
from ..ranking import apportion, smallest
from ..ranking.ranking import smallest_of_each
from ..runtime.scoring import comparison_type
from ..schedules import Constant, Cubic
from ..views import View
from ..weights import Weight, count_marks
from .gradual import Gradual
from .options import NoisyWindowOptions, Options
from .registry import register

Distribution = Literal["erk", "uniform", "global"]


@dataclass(frozen=True)
class Replacement(Selection):
    """A selection that grows a known number of weights, so that nobody waits for a device to count them."""

    number: int = 0

    def count_grown(self, weights: Sequence[Weight]) -> int:
        return self.number


class _Regrowing(Pruner):
    """Replaces a share of the kept weights at each event. The share falls to 0 along a cosine."""

    tracks: ClassVar[tuple[str, ...]] = ("full_grad",)
    share: float
    """The share of the kept weights that the first event replaces."""

    @property
    def permanent(self) -> bool:
        return self.finished

    def share_at(self, number: int, events: int) -> float:
        """The share that event `number` of `events` replaces, counted from 0."""
        return self.share * (1 + math.cos(math.pi * number / events)) / 2

    def replace(self, kept: Sequence[Tensor], numbers: Sequence[int]) -> Replacement:
        """Prune a number of the weights of each layer that are still kept, those with the lowest scores, and grow as
        many that were pruned before, those with the largest gradients."""
        tensors = len(self.weights)
        masks = [*kept, *(~weight.mask for weight in self.weights)]
        chosen = self._ranked(
            lambda run: smallest_of_each(self._ranks, masks, [*numbers, *numbers], views=self._views * 2, **run)
        )
        return Replacement(chosen[:tensors], chosen[tensors:], sum(numbers))

    def grow(self, number: int) -> list[Tensor]:
        """Mark the pruned weights with the largest gradients of the whole network."""
        pruned = [~weight.mask for weight in self.weights]
        tensors = len(pruned)
        return self._ranked(
            lambda run: smallest(lambda i: self._ranks(tensors + i), pruned, number, views=self._views, **run)
        )

    def _ranks(self, i: int) -> Tensor:
        """The scores of weight `i`, and from the number of weights on, the gradients: the largest come first."""
        tensors = len(self.weights)
        if i < tensors:
            return self.score(self.weights[i])
        return -self.statistics.value(self.weights[i - tensors], "full_grad").abs()

    @property
    def _views(self) -> list[View]:
        return [weight.view for weight in self.weights]

    def _ranked(self, choose: Callable[[dict[str, Any]], list[Tensor]]) -> list[Tensor]:
        dtype = comparison_type(torch.float32, {weight.parameter.dtype for weight in self.weights})
        try:
            return choose({"dtype": dtype, "run": self.work.kernels.elementwise})
        except NotFiniteError as error:
            number = error.tensor % len(self.weights)
            raise self.ranking().not_finite(number, "weights or gradients") from None

    def replaceable(self, kept: Sequence[int], share: float) -> list[int]:
        """How many of its kept elements each weight replaces: a share, but no more than its floor and its pruned
        elements allow."""
        return [
            max(0, min(round(share * number), weight.size - weight.kept, number - floor))
            for weight, number, floor in zip(self.weights, kept, self.floors, strict=True)
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

    Each update prunes the smallest weights of each layer. Of the weights that were pruned before, as many grow: those
    with the largest gradients at that step. They start at 0, without momentum.

    The distribution says how many weights each layer keeps. "erk" makes the density of a layer proportional to the sum
    of its dimensions over their product (Erdos-Renyi-kernel), and "uniform" keeps the same share of every layer. In
    both cases the connections at the start are random. With "global" training starts with the largest weights of the
    network, and each update ranks weights and gradients over the whole network, so the number of weights in a layer
    changes.

        >>> pruner = flipout.RigL(model, optimizer, sparsity=0.9, steps=steps)

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
        numbers = self.replaceable([weight.kept for weight in self.weights], share)
        return self.replace([weight.mask for weight in self.weights], numbers)

    def _random_start(self, keep: int) -> Selection:
        """Prune random weights, to the number that the distribution gives each layer."""
        shapes = [weight.parameter.shape for weight in self.weights]
        if self.distribution == "erk":
            quota = erdos_renyi_kernel(shapes, keep, self.floors)
        else:
            quota = apportion([shape.numel() for shape in shapes], keep, self.floors)
        surplus = [shape.numel() - number for shape, number in zip(shapes, quota, strict=True)]
        masks = [weight.mask for weight in self.weights]
        chosen = smallest_of_each(
            lambda i: self.statistics.value(self.weights[i], "uniform"), masks, surplus, views=self._views
        )
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
class GraNet(_Regrowing, Gradual):
    """GraNet (Liu et al., 2021): gradual magnitude pruning that lets weights grow back without a cost in sparsity.

    Each event prunes to the planned count. Then it prunes a further share of each layer, the smallest weights. Of the
    weights that were pruned before, as many grow: those with the largest gradients. They start at 0, without momentum.
    The count after each event is exact. After the last event nothing is pruned or grown.

        >>> pruner = flipout.GraNet(model, optimizer, sparsity=0.9, steps=steps)

    For further arguments see `Gradual`; the default schedule is `Cubic`.

    Args:
        share: the share of the kept weights that the first event replaces; it falls to 0 along a cosine.
    """

    default_schedule = Cubic
    ranks_by = staticmethod(criteria.magnitude)

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        share: float = 0.5,
        **options: Unpack[NoisyWindowOptions],
    ) -> None:
        check_share(share)
        self.share = share
        super().__init__(model, optimizer, sparsity=sparsity, steps=steps, **options)

    def select(self, keep: int) -> Selection:
        pruned = super().select(keep).prune
        left = [weight.mask & ~mark for weight, mark in zip(self.weights, pruned, strict=True)]
        share = self.share_at(len(self.events), len(self.plan()))
        replaced = self.replace(left, self.replaceable(count_marks(left, self.weights), share))
        further = [one | other for one, other in zip(pruned, replaced.prune, strict=True)]
        return Replacement(further, replaced.grow, replaced.number)


def erdos_renyi_kernel(shapes: Sequence[Sequence[int]], keep: int, floors: Sequence[int]) -> list[int]:
    """Split `keep` over layers so that their densities are proportional to `sum(shape) / prod(shape)`.

    This is the Erdos-Renyi-kernel distribution (Mocanu et al., 2018; Evci et al., 2020). Each layer keeps
    `round(t * sum(shape))` weights, with the same `t` for all, but at least its floor and at most all of its weights.
    The parts add up exactly: if several layers gain their next weight at the same `t`, the first ones do.
    """
    sizes = [math.prod(shape) for shape in shapes]
    sides = [max(1, sum(shape)) for shape in shapes]
    if not sum(map(min, floors, sizes)) <= keep <= sum(sizes):
        raise ValueError(
            f"{keep:,} of {sum(sizes):,} weights cannot be kept with the floors {list(floors)}: lower the floor or the "
            "sparsity"
        )

    def kept(t: float) -> list[int]:
        return [
            min(max(int(t * side + 0.5), floor), size) for side, size, floor in zip(sides, sizes, floors, strict=True)
        ]

    low, high = 0.0, max(size / side for size, side in zip(sizes, sides, strict=True)) + 1
    while low < (middle := (low + high) / 2) < high:
        if sum(kept(middle)) <= keep:
            low = middle
        else:
            high = middle
    result = kept(low)
    missing = keep - sum(result)
    for i, upper in enumerate(kept(high)):
        step = min(missing, upper - result[i])
        result[i] += step
        missing -= step
    return result

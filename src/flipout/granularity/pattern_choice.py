"""N:M patterns: of every M neighbouring inputs of an output, N weights stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvTransposeNd

from ..events import Selection
from ..layers import Layer
from ..modules import is_transposed
from ..schedules import Pruning
from .granularity_setting import Granularity, accurate
from .unit_choice import UnitChoice, as_selection

if TYPE_CHECKING:
    from ..pruning_event import PruningEvent

CLOSE = 0.005
"""How far the sparsity may be from `1 - N/M`, which cannot always be written exactly."""


class PatternChoice(UnitChoice):
    """N of M along the inputs; for a convolution along the input channels, at each kernel position.

    All groups of M have the same number of weights: M at first, then M - 1, and so on down to N. An event keeps the
    largest such number that does not exceed what the schedule asks for.
    """

    def __init__(self, layers: Sequence[Layer], granularity: Granularity, sparsity: float | None) -> None:
        self.least, self.group = granularity.numbers
        self.axes = [input_axis(layer) for layer in layers]
        odd = [
            f"{layer.name} ({layer.weight.shape[axis] if axis < layer.weight.ndim else 1})"
            for layer, axis in zip(layers, self.axes, strict=True)
            if axis >= layer.weight.ndim or layer.weight.shape[axis] % self.group
        ]
        if odd:
            raise ValueError(
                f"granularity={str(granularity)!r} needs a number of inputs that {self.group} divides, which these "
                f"do not have: {', '.join(odd)}. Leave them out with exclude="
            )
        self.prunable = sum(layer.weight.numel() for layer in layers)
        self.sizes = [layer.weight.numel() for layer in layers]
        right = 1 - self.least / self.group
        if sparsity is not None and abs(sparsity - right) > CLOSE:
            raise ValueError(
                f"sparsity is {sparsity}, but granularity={str(granularity)!r} keeps {self.least} of {self.group} "
                f"weights: give sparsity={right:.6g}"
            )

    def level(self, keep: int) -> int:
        """How many of M weights are kept, if `keep` are asked for."""
        return max(self.least, keep * self.group // self.prunable)

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        for floor, size in zip(floors, self.sizes, strict=True):
            if floor > size // self.group * self.least:
                raise ValueError(
                    f"a floor of {floor:,} weights does not fit a layer of {size:,} of which {self.least} in "
                    f"{self.group} stay: lower the floor"
                )
        result: list[Pruning] = []
        for pruning in plan:
            if pruning.nonzero is None:
                raise ValueError("a pattern fixes the sparsity, so it cannot follow from a threshold: give sparsity=")
            level = self.least if pruning is plan[-1] else self.level(pruning.nonzero)
            kept = prunable // self.group * level
            if kept < (result[-1].nonzero or 0 if result else prunable) or pruning is plan[-1]:
                result.append(Pruning(pruning.step, 1 - kept / prunable, kept))
        return result

    def select(self, event: PruningEvent, keep: int) -> Selection:
        level, masks = self.level(keep), [layer.mask for layer in event.layers]
        candidates = event.candidates(keep, event.ranking()) if event.reviving else masks
        after = []
        for layer, axis, candidate in zip(event.layers, self.axes, candidates, strict=True):
            scores = accurate(event.score(layer))
            extremes = scores.masked_fill(~candidate, 0).aminmax() if scores.numel() else ()
            if not all(map(math.isfinite, extremes)):
                raise event.not_finite(layer, "scores")
            after.append(highest_of_groups(scores, candidate, axis, self.group, level))
        return as_selection(masks, after, reviving=event.reviving)


def input_axis(layer: Layer) -> int:
    """The axis of a weight that its inputs lie along."""
    return 0 if is_transposed(layer.module) or isinstance(layer.module, _ConvTransposeNd) else 1


def highest_of_groups(scores: Tensor, candidates: Tensor, axis: int, group: int, number: int) -> Tensor:
    """Mark the `number` highest scores among the candidates of every `group` neighbours along an axis.

    Of equal scores the later ones stay, as everywhere in this package. If a group has fewer candidates, all of them
    are marked.
    """
    ranked = scores.masked_fill(~candidates, -torch.inf)
    shape = (*ranked.shape[:axis], ranked.shape[axis] // group, group, *ranked.shape[axis + 1 :])
    places = ranked.reshape(shape).movedim(axis + 1, 0).contiguous()
    small = torch.uint8 if group < 256 else torch.int32
    above = torch.zeros(places.shape, dtype=small, device=scores.device)
    for first, second in combinations(range(group), 2):
        wins = places[second] >= places[first]
        above[first] += wins
        above[second] += wins.logical_not_()
    kept = (above < number).movedim(0, axis + 1).reshape(scores.shape)
    return kept.logical_and_(candidates)

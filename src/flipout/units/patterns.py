"""N:M patterns: of every M neighbouring inputs of an output, N weights stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

import torch
from torch import Tensor

from ..events import Selection
from ..modules import inputs_first, is_stacked
from ..problems import Need
from ..schedules import Pruning
from ..weights import Weight
from .base import Ranking, Units
from .granularity import Granularity, accurate

CLOSE = 0.005
"""How far the sparsity may be from `1 - N/M`, which cannot always be written exactly."""


class PatternUnits(Units):
    """N of M along the inputs; for a convolution along the input channels, at each kernel position.

    All groups of M have the same number of weights: M at first, then M - 1, and so on down to N. An event keeps the
    largest such number that does not exceed what the schedule asks for.
    """

    needs: Mapping[Need, str] = MappingProxyType({"whole units": "patterns would be cut apart"})

    def __init__(self, weights: Sequence[Weight], granularity: Granularity, sparsity: float | None) -> None:
        self.least, self.group = granularity.numbers
        self.axes = [input_axis(weight) for weight in weights]
        odd = [
            f"{weight.name} ({weight.parameter.shape[axis] if axis < weight.parameter.ndim else 1})"
            for weight, axis in zip(weights, self.axes, strict=True)
            if axis >= weight.parameter.ndim or weight.parameter.shape[axis] % self.group
        ]
        if odd:
            raise ValueError(
                f"granularity={str(granularity)!r} needs a number of inputs that {self.group} divides, which these "
                f"do not have: {', '.join(odd)}. Leave them out with exclude="
            )
        self.sizes = [weight.size for weight in weights]
        self.prunable = sum(self.sizes)
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

    def select(self, ranking: Ranking, keep: int) -> Selection:
        level, after = self.level(keep), []
        candidates = ranking.candidates(keep, ranking.options())
        for number, (axis, candidate) in enumerate(zip(self.axes, candidates, strict=True)):
            scores = accurate(ranking.scores(number))
            extremes = scores.masked_fill(~candidate, 0).aminmax() if scores.numel() else ()
            if not all(map(math.isfinite, extremes)):
                raise ranking.not_finite(number)
            after.append(highest_of_groups(scores, candidate, axis, self.group, level))
        return Selection.between(ranking.masks, after, grows=ranking.ranks_pruned)


def input_axis(weight: Weight) -> int:
    """The axis of a weight that its inputs lie along."""
    return (0 if inputs_first(weight.module) else 1) + is_stacked(weight.module)


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

"""Pruning kernels and blocks: scores are reduced to units before they are ranked, one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..events import Selection
from ..problems import Need, NotFiniteError
from ..ranking import apportion
from ..ranking.digits import Scores
from ..ranking.host_numbers import counts
from ..ranking.unit_ranking import choose_units, lowest_units, planned_counts
from ..schedules import Pruning
from ..weights import Weight
from .base import Ranking, Units
from .block_layout import Region, layout_of
from .granularity import Granularity


class BlockUnits(Units):
    """Kernels, and blocks of rows and columns.

    Within a weight, units of one size form a region, which is ranked as a tensor of its own.
    """

    needs: Mapping[Need, str] = MappingProxyType({"whole units": "kernels and blocks would be cut apart"})

    def __init__(self, weights: Sequence[Weight], granularity: Granularity, *, per_layer: bool) -> None:
        self.granularity = granularity
        self.layouts = [layout_of(weight, granularity) for weight in weights]
        self.regions = [(number, part) for number, layout in enumerate(self.layouts) for part in layout.regions()]
        self.sizes = [region.size for _, region in self.regions]
        self.floors = [0] * len(self.regions)
        every = list(range(len(self.regions)))
        own = ([i for i in every if self.regions[i][0] == number] for number in range(len(weights)))
        self.pools = [pool for pool in own if pool] if per_layer else [every]
        """The regions that are ranked together."""
        self.quotas: dict[int, list[int]] = {}
        """How many weights each pool keeps, for each number of weights of the plan."""

    def _set_floors(self, floors: Sequence[int]) -> None:
        """Split the floor of each layer over its sizes of units, in proportion and rounded up to whole units."""
        self.floors = [
            -(-floors[number] * _blocks(region) // max(1, math.prod(self.layouts[number].sides)))
            for number, region in self.regions
        ]

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        self._set_floors(floors)
        counted = [pruning for pruning in plan if pruning.nonzero is not None]
        asked = [self._asked(pruning.nonzero) for pruning in counted if pruning.nonzero is not None]
        pools = [
            planned_counts(units, least, column)
            for (units, least), column in zip(map(self._units, self.pools), zip(*asked, strict=True), strict=False)
        ]
        self.quotas = {sum(quotas): list(quotas) for quotas in zip(*pools, strict=True)}
        result = [] if counted else list(plan)
        for pruning, quotas in zip(counted, zip(*pools, strict=True), strict=True):
            kept = sum(quotas)
            if kept < (result[-1].nonzero or 0 if result else prunable) or pruning is counted[-1]:
                result.append(Pruning(pruning.step, 1 - kept / prunable, kept))
        return result

    def _asked(self, keep: int) -> list[int]:
        """How many weights each pool keeps, if `keep` are asked for."""
        least = [sum(self.floors[i] * self.sizes[i] for i in pool) for pool in self.pools]
        if sum(least) > keep:
            raise ValueError(
                f"the floors keep {sum(least):,} weights in whole units, but only {keep:,} are to be kept: lower the "
                "floor or the sparsity"
            )
        totals = [sum(_blocks(self.regions[i][1]) * self.sizes[i] for i in pool) for pool in self.pools]
        return apportion(totals, keep, least) if len(totals) > 1 else [keep]

    def _units(self, pool: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """The number of units of each size, and how many of them the floors keep."""
        units, least = dict.fromkeys((self.sizes[i] for i in pool), 0), dict.fromkeys((self.sizes[i] for i in pool), 0)
        for i in pool:
            units[self.sizes[i]] += _blocks(self.regions[i][1])
            least[self.sizes[i]] += self.floors[i]
        return units, least

    def select(self, ranking: Ranking, keep: int) -> Selection:
        grids = [layout.units_of(mask) for layout, mask in zip(self.layouts, ranking.masks, strict=True)]
        scores = UnitScores(self, ranking)
        alive = self._cut(grids)
        try:
            candidates = self._candidates(ranking, scores, alive, keep) if ranking.ranks_pruned else alive
            ranked = self._ranked(ranking, scores, candidates, grids)
            pruned = self._choose(ranked, candidates, keep, scores.options)
        except NotFiniteError as error:
            raise ranking.not_finite(self.regions[error.tensor][0]) from None
        left = [mask & ~mark for mask, mark in zip(candidates, pruned, strict=True)]
        return Selection.between(ranking.masks, self._expand(left, grids), grows=ranking.ranks_pruned)

    def _ranked(self, ranking: Ranking, scores: Scores, candidates: list[Tensor], grids: Sequence[Tensor]) -> Scores:
        """The scores, with the lowest of all for units on no live path; as they are if no unit is on one."""
        if not ranking.finds_dead:
            return scores
        masks = self._expand(candidates, grids)
        dead = self._dead_units(ranking.find_dead(masks), masks)
        number = sum(counts(list(dead.values()))) if dead else 0
        return _dead_first(scores, dead) if 0 < number < sum(counts(candidates)) else scores

    def _choose(self, scores: Scores, alive: list[Tensor], keep: int, options: dict[str, Any]) -> list[Tensor]:
        marks = list(alive)
        for pool, quota in zip(self.pools, self.quotas.get(keep) or self._asked(keep), strict=True):
            try:
                chosen = choose_units(
                    lambda n: scores(pool[n]),  # noqa: B023
                    [alive[i] for i in pool],
                    [self.sizes[i] for i in pool],
                    quota,
                    floors=[self.floors[i] for i in pool],
                    **options,
                )
            except NotFiniteError as error:
                raise NotFiniteError(pool[error.tensor]) from None
            for i, mark in zip(pool, chosen, strict=True):
                marks[i] = mark
        return marks

    def _candidates(self, ranking: Ranking, scores: UnitScores, alive: list[Tensor], keep: int) -> list[Tensor]:
        """The units that are kept, and those that may come back."""
        gone = [~mask for mask in alive]
        pruned = sum(size * number for size, number in zip(self.sizes, counts(gone), strict=True))
        out = max(0, pruned - ranking.returning(keep))
        return [~mark for mark in lowest_units(scores, gone, self.sizes, out, **scores.options)]

    def _dead_units(self, dead: Mapping[int, Tensor], masks: Sequence[Tensor]) -> dict[int, Tensor]:
        grids = {number: self.layouts[number].dead_units(mark, masks[number]) for number, mark in dead.items()}
        return {i: grids[n][part.rows, part.columns] for i, (n, part) in enumerate(self.regions) if n in grids}

    def _cut(self, grids: Sequence[Tensor]) -> list[Tensor]:
        """The regions of all grids."""
        return [grids[number][part.rows, part.columns].contiguous() for number, part in self.regions]

    def _expand(self, regions: Sequence[Tensor], grids: Sequence[Tensor]) -> list[Tensor]:
        """Marks of weights, from marks of the units of all regions."""
        whole = [torch.zeros_like(grid) for grid in grids]
        for (number, part), marks in zip(self.regions, regions, strict=True):
            whole[number][part.rows, part.columns] = marks
        return [layout.expand(grid) for layout, grid in zip(self.layouts, whole, strict=True)]


class UnitScores:
    """The scores of the units of each region.

    Selection reads them a few times. All of them are remembered if they are no more numbers than the scores of the
    weights of one layer, which have to be in memory anyway; otherwise those of the last layer.
    """

    def __init__(self, units: BlockUnits, ranking: Ranking) -> None:
        self.units, self.ranking = units, ranking
        self._grids: dict[int, Tensor] = {}
        total = sum(math.prod(layout.grid) for layout in units.layouts)
        self._all = total <= max(weight.size for weight in ranking.weights)
        self.options = {key: value for key, value in ranking.options().items() if key != "views"}
        if self.options["dtype"] == torch.int64:
            self.options["dtype"] = torch.float64  # a mean of integers is none

    def __call__(self, region: int) -> Tensor:
        number, part = self.units.regions[region]
        return self._grid(number)[part.rows, part.columns].contiguous()

    def _grid(self, number: int) -> Tensor:
        if number not in self._grids:
            if not self._all:
                self._grids.clear()
            how = self.units.granularity.reduce
            self._grids[number] = self.units.layouts[number].reduced(self.ranking.scores(number), how)
        return self._grids[number]


def _dead_first(scores: Scores, dead: dict[int, Tensor]) -> Scores:
    """The scores, with the lowest of all for dead units, which keep their order among themselves."""
    found = {i: scores(i)[mark] for i, mark in dead.items()}
    for i, own in found.items():
        if not torch.isfinite(own).all():
            raise NotFiniteError(i)
    order = torch.cat([own.cpu() for own in found.values()]).argsort(stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    places = dict(zip(found, torch.split(ranks, [len(own) for own in found.values()]), strict=True))

    def ranked(i: int) -> Tensor:
        own = scores(i)
        return own.masked_scatter(dead[i], _lowest_numbers(own, places[i])) if i in dead else own

    return ranked


def _lowest_numbers(like: Tensor, ranks: Tensor) -> Tensor:
    """The lowest finite numbers of a tensor's type, by their rank: neighbours differ in the last bit."""
    bits = torch.int64 if like.dtype == torch.float64 else torch.int32
    lowest = torch.tensor(torch.finfo(like.dtype).min, dtype=like.dtype).view(bits)
    return (lowest - ranks).to(bits).view(like.dtype).to(like.device)


def _blocks(region: Region) -> int:
    rows, columns = region.rows, region.columns
    return int((rows.stop - rows.start) * (columns.stop - columns.start))

"""Pools: weights that have a sparsity of their own, each pruned in its own units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..events import Selection
from ..limits import check_floors
from ..schedules import Pruning, Schedule
from ..weights import Weight
from .base import Ranking, Units

UnitsOf = Callable[[Sequence[Weight], float], Units]
"""Makes the units of some weights, for their sparsity."""


@dataclass(frozen=True)
class Pool:
    """Weights with one sparsity: their places among all, when they are pruned, and their units."""

    places: list[int]
    schedule: Schedule
    units: Units

    def planned(self, sizes: Sequence[int], floors: Sequence[int]) -> list[Pruning]:
        """The prunings of these weights alone."""
        prunable, own = sum(sizes[place] for place in self.places), [floors[place] for place in self.places]
        plan = self.schedule.plan(prunable)
        check_floors(own, min((pruning.nonzero or 0 for pruning in plan), default=prunable))
        return self.units.planned(plan, prunable, own)

    def ranking(self, ranking: Ranking) -> Ranking:
        """What an event ranks of these weights."""
        weights = [ranking.weights[place] for place in self.places]
        return replace(ranking, weights=weights, floors=[ranking.floors[place] for place in self.places])


class PooledUnits(Units):
    """Several pools, which are pruned at the same steps.

    Args:
        weights: all weights; each belongs to one pool.
        sparsities: for each pool its sparsity, and its weights.
        schedule: when to prune.
        units_of: makes the units of a pool.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        sparsities: Sequence[tuple[float, Sequence[Weight]]],
        schedule: Schedule,
        units_of: UnitsOf,
    ) -> None:
        places = {weight: place for place, weight in enumerate(weights)}
        self.sizes = [weight.size for weight in weights]
        self.pools = [
            Pool([places[weight] for weight in own], schedule.with_sparsity(sparsity), units_of(own, sparsity))
            for sparsity, own in sparsities
        ]
        self.needs = self.pools[0].units.needs
        self._keeps: Mapping[int, tuple[int, ...]] = {}
        """What each pool keeps, by what all keep together. Nothing grows, so the sum determines the parts."""

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        plans = [pool.planned(self.sizes, floors) for pool in self.pools]
        whole = [sum(self.sizes[place] for place in pool.places) for pool in self.pools]
        keeps, result = dict[int, tuple[int, ...]](), list[Pruning]()
        for step in dict.fromkeys(pruning.step for pruning in plan):
            parts = tuple(
                next((p.nonzero for p in reversed(own) if p.step <= step and p.nonzero is not None), size)
                for own, size in zip(plans, whole, strict=True)
            )
            keeps[sum(parts)] = parts
            result.append(Pruning(step, 1 - sum(parts) / prunable, sum(parts)))
        self._keeps = keeps
        return result

    def select(self, ranking: Ranking, keep: int) -> Selection:
        prune, grow = dict[int, Tensor](), dict[int, Tensor]()
        for pool, own in zip(self.pools, self._keeps[keep], strict=True):
            chosen = pool.units.select(pool.ranking(ranking), own)
            prune |= zip(pool.places, chosen.prune, strict=True)
            grow |= zip(pool.places, chosen.grow, strict=bool(chosen.grow))
        places = range(len(self.sizes))
        return Selection([prune[place] for place in places], [grow[place] for place in places] if grow else ())

"""How many weights each layer keeps, and which, in whole units and to exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..limits import Floor, Sparsity, by_pattern, check_floors, read_floors
from ..problems import NotFiniteError
from ..ranking import apportion, numbers_of_smallest
from ..runtime.batches import Batches
from ..schedules import Geometric, Pruning
from ..units import SHARES, DeadWeights, Granularity, Ranking, Target, Units, units_for
from ..units.channels import ChannelUnits
from ..weights import Weight
from .scoring import ScoreOf
from .solvers import lowest_of_rows

Scope = Literal["global", "layer", "output"]


@dataclass(frozen=True)
class Pool:
    """Weights with one sparsity.

    Args:
        weights: the weights.
        plan: the pruning of each round.
        floors: the least number that each keeps.
    """

    weights: list[Weight]
    plan: list[Pruning]
    floors: list[int]

    @property
    def keeps(self) -> list[int]:
        """How many of the weights are kept together after each round."""
        return [pruning.nonzero or 0 for pruning in self.plan]


def pools_of(sparsity: Sparsity, weights: Sequence[Weight], floor: Floor, rounds: int, target: Target) -> list[Pool]:
    """The weights, divided by the sparsity that is asked for. Weights that no pattern matches are in none."""
    patterns = dict(sparsity) if isinstance(sparsity, Mapping) else {"*": sparsity}
    floors = dict(zip(weights, read_floors(floor, weights), strict=True))
    pools = []
    for pattern, own in by_pattern(patterns, weights, "sparsity").items():
        if own:
            prunable = sum(weight.size for weight in own) if target == "weights" else SHARES
            plan = Geometric(patterns[pattern], 1, prunings=rounds, window=(0, 0)).plan(prunable)
            pools.append(pool := Pool(own, plan, [floors[weight] for weight in own]))
            if target == "weights":
                check_floors(pool.floors, pool.keeps[-1], floor)
    return pools


def ranking(network: nn.Module, weights: Sequence[Weight], score: ScoreOf, floors: Sequence[int]) -> Ranking:
    return Ranking(
        network,
        step=1,
        weights=weights,
        score=score,
        floors=floors,
        per_layer=False,
        ranks_pruned=False,
        returning=lambda keep: 0,
        dead=DeadWeights(),
        run=lambda function: function,
    )


def counts_by_layer(
    network: nn.Module, pool: Pool, keep: int, scope: Scope, granularity: Granularity, score: ScoreOf
) -> dict[Weight, int]:
    """How many weights each layer of a pool keeps, from the scores of all of them if the scope is global."""
    if scope != "global" or granularity.kind == "pattern":
        kept = apportion([weight.size for weight in pool.weights], keep, pool.floors)
    elif granularity.kind == "weight" and not any(pool.floors):
        ranked = ranking(network, pool.weights, score, pool.floors)
        masks = [weight.mask if weight.kept < weight.size else every(weight) for weight in pool.weights]
        surplus = sum(weight.kept for weight in pool.weights) - keep
        try:
            pruned = numbers_of_smallest(ranked.scores, masks, surplus, **ranked.options())
        except NotFiniteError as error:
            raise ranked.not_finite(error.tensor) from None
        kept = [weight.kept - gone for weight, gone in zip(pool.weights, pruned, strict=True)]
    else:
        after = select(network, pool.weights, keep, pool.floors, granularity, score)
        kept = [int(mask.sum()) for mask in after]
    return dict(zip(pool.weights, kept, strict=True))


def every(weight: Weight) -> Tensor:
    """The mask of a weight of which nothing is pruned, without the memory of one."""
    return torch.ones((), dtype=torch.bool, device=weight.parameter.device).expand(weight.parameter.shape)


def select(
    network: nn.Module,
    weights: Sequence[Weight],
    keep: int,
    floors: Sequence[int],
    granularity: Granularity,
    score: ScoreOf,
) -> list[Tensor]:
    """The masks that keep the highest scores of some weights, in whole units."""
    prunable = sum(weight.size for weight in weights)
    units = units_for(granularity, weights, None, per_layer=False)
    plan = units.planned([Pruning(1, 1 - keep / max(1, prunable), keep)], prunable, floors)
    return masks_after(units, ranking(network, weights, score, floors), plan[-1].nonzero or 0)


def masks_after(units: Units, ranking: Ranking, keep: int) -> list[Tensor]:
    """The masks that keep the highest scores of a ranking."""
    selection = units.select(ranking, keep)
    return [mask & ~pruned for mask, pruned in zip(ranking.masks, selection.prune, strict=True)]


def rows_kept(scores: Tensor, keep: int) -> Tensor:
    """The highest scores of each row of a matrix (groups, outputs, inputs): the same share of each, `keep` together."""
    groups, outputs, inputs = scores.shape
    left = apportion([inputs] * (groups * outputs), keep, [0] * (groups * outputs))
    pruned = inputs - torch.tensor(left, device=scores.device).view(groups, outputs)
    return ~lowest_of_rows(scores, pruned)


def channel_units(pool: Pool, granularity: Granularity, batches: Batches, *, per_layer: bool) -> Units:
    """Whole channels of a network, followed through a call with the first batch."""
    units, call = ChannelUnits(pool.weights, granularity, per_layer=per_layer), next(iter(batches))
    units.call.note(call.args, call.kwargs)
    pool.plan[:] = units.planned(pool.plan, sum(weight.size for weight in pool.weights), pool.floors)
    return units

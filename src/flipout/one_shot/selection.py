"""How many weights each layer keeps, and which, in whole units and to exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..problems import NotFiniteError
from ..ranking import apportion, numbers_of_smallest, read_floor
from ..runtime.batches import Batches
from ..schedules import Geometric, Pruning
from ..units import DeadWeights, Granularity, Ranking, Units, units_for
from ..units.channels import ChannelUnits
from ..weights import Weight, matches
from .scoring import ScoreOf
from .solvers import lowest_of_rows

Scope = Literal["global", "layer", "output"]
Sparsity = float | Mapping[str, float]
"""A share of all weights, or shares by name pattern; a weight belongs to the first pattern that matches it."""


@dataclass(frozen=True)
class Pool:
    """Weights with one sparsity.

    Args:
        weights: the weights.
        keeps: how many of them are kept together after each round.
        floors: the least number that each keeps.
    """

    weights: list[Weight]
    keeps: list[int]
    floors: list[int]


def pools_of(sparsity: Sparsity, weights: Sequence[Weight], floor: int | float, rounds: int) -> list[Pool]:
    """The weights, divided by the sparsity that is asked for. Weights that no pattern matches are in none."""
    patterns = dict(sparsity) if isinstance(sparsity, Mapping) else {"*": sparsity}
    members: dict[str, list[Weight]] = {pattern: [] for pattern in patterns}
    for weight in weights:
        first = next((pattern for pattern in patterns if matches(weight.name, pattern)), None)
        if first is not None:
            members[first].append(weight)
    if strange := [p for p in patterns if not any(matches(weight.name, p) for weight in weights)]:
        raise ValueError(f"sparsity={{{strange[0]!r}: ...}} matches no weight that is pruned")
    pools = []
    for pattern, own in members.items():
        if own:
            sizes = [weight.size for weight in own]
            plan = Geometric(patterns[pattern], 1, prunings=rounds, window=(0, 0)).plan(sum(sizes))
            keeps = [pruning.nonzero or 0 for pruning in plan]
            pools.append(Pool(own, keeps, read_floor(floor, sizes, keeps[-1])))
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
    units: Units | None = None,
) -> list[Tensor]:
    """The masks that keep the highest scores of some weights, in whole units."""
    prunable = sum(weight.size for weight in weights)
    units = units or units_for(granularity, weights, None, per_layer=False)
    plan = units.planned([Pruning(1, 1 - keep / max(1, prunable), keep)], prunable, floors)
    selection = units.select(ranking(network, weights, score, floors), plan[-1].nonzero or 0)
    return [weight.mask & ~pruned for weight, pruned in zip(weights, selection.prune, strict=True)]


def rows_kept(scores: Tensor, keep: int) -> Tensor:
    """The highest scores of each row of a matrix (groups, outputs, inputs): the same share of each, `keep` together."""
    groups, outputs, inputs = scores.shape
    left = apportion([inputs] * (groups * outputs), keep, [0] * (groups * outputs))
    pruned = inputs - torch.tensor(left, device=scores.device).view(groups, outputs)
    return ~lowest_of_rows(scores, pruned)


def channel_units(
    network: nn.Module, weights: Sequence[Weight], granularity: Granularity, batches: Batches, *, per_layer: bool
) -> Units:
    """Whole channels of a network, followed through a call with the first batch."""
    units, call = ChannelUnits(weights, granularity, per_layer=per_layer), next(iter(batches))
    units.call.note(call.args, call.kwargs)
    return units

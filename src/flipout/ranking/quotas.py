"""How many weights each layer keeps: floors, equal shares, and the choice of what to prune under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real

import torch
from torch import Tensor

from ..views import View
from .across_ranks import total_counts
from .digits import Scores
from .ranking import Run, smallest, smallest_of_each


def choose(
    scores: Scores,
    alive: Sequence[Tensor],
    keep: int,
    *,
    floors: Sequence[int],
    per_layer: bool = False,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
    views: Sequence[View] = (),
) -> list[Tensor]:
    """Mark what to prune so that exactly `keep` weights are kept, and at least `floors[i]` of them in layer `i`.

    With `views`, numbers are those of all ranks, and the shares of layers are counted from their original sizes.
    """
    kept = total_counts(alive, views)
    if per_layer:
        sizes = [view.size for view in views] or [mask.numel() for mask in alive]
        quota = apportion(sizes, keep, floors)
        surplus = [have - stay for have, stay in zip(kept, quota, strict=True)]
        return smallest_of_each(scores, alive, surplus, dtype=dtype, run=run, views=views)
    # A floor protects the highest scores of its layer; the other weights are ranked over the whole network.
    candidates = list(alive)
    if guarded := [i for i, floor in enumerate(floors) if floor]:
        spare = [max(0, kept[i] - floors[i]) for i in guarded]
        lowest = smallest_of_each(
            lambda n: scores(guarded[n]),
            [alive[i] for i in guarded],
            spare,
            dtype=dtype,
            run=run,
            views=[views[i] for i in guarded if views],
        )
        for i, mark in zip(guarded, lowest, strict=True):
            candidates[i] = mark
    return smallest(scores, candidates, sum(kept) - keep, dtype=dtype, run=run, views=views)


def read_floor(floor: int | float, sizes: Sequence[int]) -> list[int]:
    """The least number of weights that each layer keeps, from a number or a share."""
    if not isinstance(floor, Real) or isinstance(floor, bool):
        raise TypeError(f"floor is {floor!r}; give a whole number of weights, or a share of them between 0 and 1")
    if not 0 <= floor < math.inf or (not isinstance(floor, Integral) and floor > 1):
        raise ValueError(f"floor is {floor}; give a whole number of weights, or a share of them between 0 and 1")
    share = None if isinstance(floor, Integral) else Decimal(repr(float(floor)))
    return [min(int(floor), n) if share is None else math.ceil(share * n) for n in sizes]


def apportion(sizes: Sequence[int], keep: int, floors: Sequence[int]) -> list[int]:
    """Split `keep` over layers in proportion to their sizes, each at least its floor. The parts add up exactly.

    Each layer loses `round(t * size)` weights, with the same `t` for all (Webster's divisor method). Unlike rounding up
    the largest remainders it is monotone: when `keep` falls, no layer's part rises.
    """

    def lost(t: float) -> list[int]:
        return [min(int(t * n + 0.5), n - min(floor, n)) for n, floor in zip(sizes, floors, strict=True)]

    goal = sum(sizes) - keep
    low, high = 0.0, 1.0
    if sum(lost(high)) < goal:
        raise ValueError(f"floors {list(floors)} add up to more than the {keep} weights to keep")
    while low < (middle := (low + high) / 2) < high:
        if sum(lost(middle)) <= goal:
            low = middle
        else:
            high = middle
    result = lost(high if sum(lost(high)) <= goal else low)
    # If several layers lose their next weight at the same t, the first ones do.
    missing = goal - sum(result)
    for i, upper in enumerate(lost(high)):
        step = min(missing, upper - result[i])
        result[i] += step
        missing -= step
    return [n - gone for n, gone in zip(sizes, result, strict=True)]

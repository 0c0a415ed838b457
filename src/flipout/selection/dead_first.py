"""Choose what to prune so that weights on no live path go first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .digits import Scores
from .host_numbers import counts
from .quotas import apportion, choose
from .ranking import Run, smallest, smallest_of_each

FindDead = Callable[[Sequence[Tensor]], Mapping[int, Tensor]]
"""Takes the masks of all layers, and returns the kept weights on no live path of each layer that has some."""

ROUNDS = 5
"""How often a choice is made at most in one event."""


def choose_dead_first(
    find_dead: FindDead,
    scores: Scores,
    alive: Sequence[Tensor],
    keep: int,
    *,
    floors: Sequence[int],
    per_layer: bool = False,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
) -> list[Tensor]:
    """Mark what to prune as `choose` does, but weights on no live path before all others.

    A choice may leave other weights without a path. Then the choice is made again, with these first as well, and keeps
    weights with a path in their place. Where every weight would go first, their order is that of `choose`.
    """
    first = _unless_all(find_dead(alive), sum(counts(alive)))
    for _ in range(ROUNDS):
        early = _choose_among(first, scores, alive, keep, floors, per_layer, dtype, run)
        left = [mask ^ early[i] if i in early else mask for i, mask in enumerate(alive)]
        late = choose(scores, left, keep, floors=floors, per_layer=per_layer, dtype=dtype, run=run)
        chosen = [mark | early[i] if i in early else mark for i, mark in enumerate(late)]
        found = _unless_all(find_dead([mask ^ mark for mask, mark in zip(alive, chosen, strict=True)]), keep)
        new = {i: dead & ~first[i] if i in first else dead for i, dead in found.items()}
        if not sum(counts(list(new.values()))):
            break
        first = {**first, **{i: dead | first[i] if i in first else dead for i, dead in new.items()}}
    return chosen


def _choose_among(
    first: Mapping[int, Tensor],
    scores: Scores,
    alive: Sequence[Tensor],
    keep: int,
    floors: Sequence[int],
    per_layer: bool,
    dtype: torch.dtype,
    run: Run,
) -> dict[int, Tensor]:
    """Mark what is pruned of the weights that go first: as many as must go and as the floors allow."""
    if not first:
        return {}
    numbers, marks = list(first), list(first.values())
    kept, available = counts(alive), counts(marks)
    least = apportion([mask.numel() for mask in alive], keep, floors) if per_layer else floors
    spare = [min(have, max(0, kept[i] - least[i])) for i, have in zip(numbers, available, strict=True)]

    def scores_of(n: int) -> Tensor:
        return scores(numbers[n])

    if spare != available:
        marks = smallest_of_each(scores_of, marks, spare, dtype=dtype, run=run)
    if not per_layer and sum(spare) > (due := sum(kept) - keep):
        marks = smallest(scores_of, marks, due, dtype=dtype, run=run)
    return dict(zip(numbers, marks, strict=True))


def _unless_all(dead: Mapping[int, Tensor], total: int) -> Mapping[int, Tensor]:
    """Nothing if all weights are dead: then none of them is better than another."""
    return {} if dead and sum(counts(list(dead.values()))) == total else dead

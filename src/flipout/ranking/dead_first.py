"""Choose what to prune so that weights on no live path go first, and as few as possible are left.

Slow and obvious: go through the weights from the lowest score up. Prune each one together with the weights that it
leaves without a path, unless that is more than is still due. Here a search finds how far this gets in one stretch, and
the weight that does not fit is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..views import View
from .digits import Scores
from .host_numbers import counts
from .quotas import apportion, choose
from .ranking import Run, smallest, smallest_of_each

FindDead = Callable[[Sequence[Tensor]], Mapping[int, Tensor]]
"""Takes the masks of all layers, and returns the kept weights on no live path of each layer that has some."""

ATTEMPTS = 12
"""How many choices are tried in one event. What is due after that is chosen by score alone."""

TOLERANCE = 0.01
"""Share of the weights that are due, or kept if these are fewer, that is chosen by score alone at the end."""


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
    views: Sequence[View] = (),
) -> list[Tensor]:
    """Mark what to prune as `choose` does, but weights on no live path before all others.

    This includes weights that lose their path by what else is pruned. If no weight is on a live path, scores decide.
    """
    sizes = [view.size for view in views] or [mask.numel() for mask in alive]
    task = _Task(find_dead, scores, keep, floors, per_layer, dtype, run, views, sizes)
    dead = find_dead(alive)
    if dead and sum(counts(list(dead.values()))) == sum(counts(alive)):
        return task.lowest(alive, keep)
    left = task.without(alive, dead)
    if dead and sum(counts(left)) == keep:
        task.lowest(alive, keep)  # for its checks: a score that is not finite is an error at every event
    left = _prune_with_orphans(task, left)
    late = task.lowest(left, keep)
    return [before ^ after ^ mark for before, after, mark in zip(alive, left, late, strict=True)]


@dataclass(frozen=True)
class _Task:
    """What is to be chosen, with the arguments of `choose_dead_first`."""

    find_dead: FindDead
    scores: Scores
    keep: int
    floors: Sequence[int]
    per_layer: bool
    dtype: torch.dtype
    run: Run
    views: Sequence[View]
    sizes: Sequence[int]

    def lowest(self, alive: Sequence[Tensor], keep: int, floors: Sequence[int] | None = None) -> list[Tensor]:
        """Mark the lowest scores, so that `keep` weights are kept."""
        return choose(
            self.scores,
            alive,
            keep,
            floors=self.floors if floors is None else floors,
            per_layer=self.per_layer,
            views=self.views,
            dtype=self.dtype,
            run=self.run,
        )

    def without(self, alive: Sequence[Tensor], dead: Mapping[int, Tensor]) -> list[Tensor]:
        """The masks after dead weights are pruned: as many as are due and as the floors allow, lowest scores first."""
        if not dead:
            return list(alive)
        numbers, marks = list(dead), list(dead.values())
        kept, available = counts(alive), counts(marks)
        spare = self.spare(kept, dict(zip(numbers, available, strict=True)))

        def scores_of(n: int) -> Tensor:
            return self.scores(numbers[n])

        if spare != available:
            marks = smallest_of_each(scores_of, marks, spare, dtype=self.dtype, run=self.run)
        if not self.per_layer and sum(spare) > (due := sum(kept) - self.keep):
            marks = smallest(scores_of, marks, due, dtype=self.dtype, run=self.run)
        pruned = dict(zip(numbers, marks, strict=True))
        return [mask ^ pruned[i] if i in pruned else mask for i, mask in enumerate(alive)]

    def spare(self, kept: Sequence[int], dead: Mapping[int, int]) -> list[int]:
        """How many of its dead weights each layer can spare, given how many weights it keeps."""
        least = apportion(self.sizes, self.keep, self.floors) if self.per_layer else self.floors
        return [min(number, max(0, kept[i] - least[i])) for i, number in dead.items()]


@dataclass(frozen=True)
class _Attempt:
    """A choice of the lowest scores: what it marks, the masks after it, what is dead then, and how many go in all."""

    number: int
    marks: Sequence[Tensor]
    left: Sequence[Tensor]
    dead: Mapping[int, Tensor]
    cost: int


class _Pool:
    """The weights that a choice marks, packed, so that fewer of them are chosen without ranking all weights again."""

    def __init__(self, task: _Task, marks: Sequence[Tensor]) -> None:
        self.task, self.marks = task, marks
        self.scores = [task.scores(i)[mark] for i, mark in enumerate(marks)]

    def lowest(self, number: int) -> list[Tensor]:
        every = [torch.ones_like(scores, dtype=torch.bool) for scores in self.scores]
        chosen = smallest(lambda i: self.scores[i], every, number, dtype=self.task.dtype, run=self.task.run)
        return [
            torch.zeros_like(mark).masked_scatter_(mark, here) for mark, here in zip(self.marks, chosen, strict=True)
        ]


def _prune_with_orphans(task: _Task, left: list[Tensor]) -> list[Tensor]:
    """Prune the lowest scores with the weights that they leave without a path, until almost all that is due is gone."""
    kept_back = [torch.zeros_like(mask) for mask in left]
    # Elsewhere ranking is fast, and packing would wait for the device once for each layer.
    packs = not task.per_layer and all(mask.device.type == "cpu" for mask in left)
    attempts, due = ATTEMPTS, sum(counts(left)) - task.keep
    enough = TOLERANCE * min(due, task.keep)
    while due > enough and attempts and (most := _spare_in_all(task, left, kept_back)):
        # The most of the lowest scores that can go with their orphans is at least `low` and less than `high`.
        low, high, guess, pool = _Attempt(0, kept_back, left, {}, 0), None, min(due, most), None
        while attempts and low.cost < due and low.number < most and (high is None or high.number - low.number > 1):
            attempts -= 1
            attempt = _try(task, left, guess, pool.lowest(guess) if pool else _lowest(task, left, kept_back, guess))
            if attempt.cost <= due:
                low = attempt
            else:
                high = attempt
                pool = _Pool(task, attempt.marks) if packs else None
            # With the same orphans, this number would be exact.
            guess = min(most, due - (attempt.cost - attempt.number))
            if high is not None and not low.number < guess < high.number:
                guess = (low.number + high.number) // 2
        left, due = task.without(low.left, low.dead), due - low.cost
        if high is None or task.per_layer:
            break
        if high.number - low.number == 1:  # the weight that does not fit
            kept_back = [
                back | (here & ~there) for back, here, there in zip(kept_back, low.left, high.left, strict=True)
            ]
    return left


def _lowest(task: _Task, left: Sequence[Tensor], kept_back: Sequence[Tensor], number: int) -> list[Tensor]:
    """Mark a number of the lowest scores, except for weights that are kept back."""
    candidates = [mask & ~back for mask, back in zip(left, kept_back, strict=True)]
    return task.lowest(candidates, sum(counts(candidates)) - number, _remaining_floors(task, kept_back))


def _remaining_floors(task: _Task, kept_back: Sequence[Tensor]) -> list[int]:
    """The floors for all other weights, if some are kept back."""
    return [max(0, floor - number) for floor, number in zip(task.floors, counts(kept_back), strict=True)]


def _spare_in_all(task: _Task, left: Sequence[Tensor], kept_back: Sequence[Tensor]) -> int:
    """How many weights can be pruned without those that are kept back."""
    numbers = counts([mask & ~back for mask, back in zip(left, kept_back, strict=True)])
    floors = _remaining_floors(task, kept_back)
    return sum(max(0, number - floor) for number, floor in zip(numbers, floors, strict=True))


def _try(task: _Task, left: Sequence[Tensor], number: int, marks: Sequence[Tensor]) -> _Attempt:
    """Look at what a choice leaves without a path."""
    after = [mask ^ mark for mask, mark in zip(left, marks, strict=True)]
    dead = task.find_dead(after)
    numbers = counts([*after, *dead.values()])
    gone = task.spare(numbers[: len(after)], dict(zip(dead, numbers[len(after) :], strict=True)))
    return _Attempt(number, marks, after, dead, number + sum(gone))

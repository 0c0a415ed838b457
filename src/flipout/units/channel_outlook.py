"""Removing channels so that the last number of the plan can still be reached.

A floor needs a number of weights in a layer, which is a product of its outputs and inputs. So which channels may go
depends on which went before, and an order can end with more weights than another. Each event therefore looks ahead: it
goes by rank, unless that ends above the plan, now or at the last event. Then it leaves the channels of a state that
does reach the plan.

The orders that are tried compare numbers of channels only, and what a floor forbids once stays forbidden. So an order
that reaches the plan from some channels also does from fewer of them, as long as those of its end are among them: what
one event found, the next one finds again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .channel_counts import ChannelCounts

Remove = Callable[[ChannelCounts, Tensor, Sequence[int], int, Sequence[int], Sequence[bool] | None], None]

ORDERS: tuple[Callable[[tuple[int, int]], tuple[int, int]], ...] = (
    lambda step: (-step[1], step[0]),  # always from the family with the most units
    lambda step: (step[0], -step[1]),  # one family after the other
    lambda step: (-step[0], -step[1]),  # the same from the last one
)
"""Orders in which families lose units. A step is a family, and the number of units that it still has."""


def remove_with_outlook(
    remove: Remove,
    counts: ChannelCounts,
    before: ChannelCounts,
    scores: Tensor,
    families: Sequence[int],
    keep: int,
    least: int,
    floors: Sequence[int],
) -> ChannelCounts:
    """Remove units until at most `keep` weights are left, and so that later events can reach `least`.

    Args:
        remove: removes units by rank.
        counts: the units to choose from.
        before: those of them that are kept so far; later events could go on from these.
        scores: the score of each unit.
        families: the family of each unit; its last one stays.
        keep: the most weights that are left after this event.
        least: the same after the last event.
        floors: the least number of weights of each layer.

    Returns:
        what is left: more than `keep` weights if nothing that was tried has fewer.
    """
    left = counts.copy()
    remove(left, scores, families, keep, floors, None)
    if left.kept <= keep and fewest(left, scores, families, least, floors).kept <= least:
        return left
    goal = fewest(before, scores, families, least, floors)
    if goal.kept <= least:
        left = counts.copy()
        remove(left, scores, families, keep, floors, goal.alive)
    return left


def fewest(
    counts: ChannelCounts, scores: Tensor, families: Sequence[int], least: int, floors: Sequence[int]
) -> ChannelCounts:
    """The units that are left with `least` weights, or with as few as the orders reach."""
    if counts.kept <= least:
        return counts
    members: dict[int, list[int]] = {}
    for unit in scores.argsort(stable=True).tolist():
        if counts.alive[unit]:
            members.setdefault(families[unit], []).append(unit)
    steps = [(family, number) for family, units in members.items() for number in range(len(units), 1, -1)]
    best = counts
    for order in ORDERS:
        left = counts.copy()
        _follow(left, members, sorted(steps, key=order), least, floors)
        best = min(best, left, key=lambda each: each.kept)
        if best.kept <= least:
            break
    return best


def _follow(
    counts: ChannelCounts,
    members: dict[int, list[int]],
    steps: Sequence[tuple[int, int]],
    least: int,
    floors: Sequence[int],
) -> None:
    """Remove a unit at each step, the lowest score of its family that no floor needs."""
    left = {family: list(units) for family, units in members.items()}
    for family, number in steps:
        if counts.kept <= least:
            return
        own = left[family]
        if len(own) == number:  # otherwise floors need all of its units
            unit = next((unit for unit in own if counts.respects(floors, unit)), None)
            if unit is not None:
                own.remove(unit)
                counts.switch(unit)

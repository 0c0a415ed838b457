"""How many weights are kept with some of the channels, and which channels to remove.

A weight between two channels is kept if both are. So what a channel takes along depends on which others are left: the
number of kept weights is a sum of products, of the outputs and inputs that each layer keeps. With a price for the
weights of each layer the sum is another cost, such as multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor


class ChannelCounts:
    """Counts kept weights, or what they cost, while units are removed and added.

    `kept` is the number of weights that are kept, each times the price of its layer.

    Args:
        units: the number of units.
        outputs: for each layer, the unit of each output; `units` for an output that always stays.
        inputs: for each layer, the unit of each input, or None if the outputs alone decide.
        positions: for each layer, the number of weights between an output and an input.
        alive: the units that are there at the beginning.
        prices: for each layer, what one weight costs; 1 by default.
    """

    def __init__(
        self,
        units: int,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor | None],
        positions: Sequence[int],
        alive: Tensor,
        prices: Sequence[int] | None = None,
    ) -> None:
        self.alive: list[bool] = alive.tolist()
        self._positions = positions
        self._prices = [1] * len(positions) if prices is None else prices
        self._touched: list[dict[int, list[int]]] = [{} for _ in range(units)]
        self._sides: list[list[int]] = []
        for layer, sides in enumerate(zip(outputs, inputs, strict=True)):
            kept = [1, 1]
            for side, channels in enumerate(sides):
                if channels is None:
                    continue
                numbers = torch.bincount(channels, minlength=units + 1)
                kept[side] = int(numbers[units]) + int(numbers[:units][alive].sum())
                for unit in numbers[:units].nonzero().flatten().tolist():
                    self._touched[unit].setdefault(layer, [0, 0])[side] = int(numbers[unit])
            self._sides.append(kept)
        self.kept = sum(map(self.cost, range(len(self._sides))))

    def copy(self) -> Self:
        """Counts that start from the same units."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        new.alive, new._sides = list(self.alive), [list(sides) for sides in self._sides]
        return new

    def layer(self, number: int) -> int:
        """The kept weights of a layer."""
        outputs, inputs = self._sides[number]
        return outputs * inputs * self._positions[number]

    def cost(self, number: int) -> int:
        """What the kept weights of a layer cost."""
        return self.layer(number) * self._prices[number]

    def change(self, unit: int) -> int:
        """By how much `kept` changes if a unit is removed, or added."""
        before = sum(map(self.cost, self._touched[unit]))
        self._switch(unit)
        after = sum(map(self.cost, self._touched[unit]))
        self._switch(unit)
        return abs(after - before)

    def switch(self, unit: int) -> None:
        """Remove a unit, or add one that was removed."""
        before = sum(map(self.cost, self._touched[unit]))
        self._switch(unit)
        self.kept += sum(map(self.cost, self._touched[unit])) - before

    def respects(self, floors: Sequence[int], unit: int) -> bool:
        """Whether every layer that a unit touches keeps its floor without it."""
        self._switch(unit)
        enough = all(self.layer(number) >= floors[number] for number in self._touched[unit])
        self._switch(unit)
        return enough

    def _switch(self, unit: int) -> None:
        sign = -1 if self.alive[unit] else 1
        self.alive[unit] = not self.alive[unit]
        for number, sides in self._touched[unit].items():
            for side, channels in enumerate(sides):
                self._sides[number][side] += sign * channels


def remove_lowest(
    counts: ChannelCounts,
    scores: Tensor,
    families: Sequence[int],
    keep: int,
    floors: Sequence[int],
    stay: Sequence[bool] | None = None,
) -> None:
    """Remove the lowest-ranked units until at most `keep` weights are left, then add back what still fits.

    The last unit of a family stays, and so do a unit that a floor needs and those that are marked in `stay`. After
    this, no unit that was removed here could be added without exceeding `keep`.
    """
    left = dict.fromkeys(families, 0)
    for unit, alive in enumerate(counts.alive):
        left[families[unit]] += alive
    removed = []
    for unit in scores.argsort(stable=True).tolist():
        if counts.kept <= keep:
            break
        may_go = counts.alive[unit] and left[families[unit]] > 1 and not (stay and stay[unit])
        if may_go and counts.respects(floors, unit):
            counts.switch(unit)
            left[families[unit]] -= 1
            removed.append(unit)
    for unit in reversed(removed):
        if counts.kept + counts.change(unit) <= keep:
            counts.switch(unit)


def remove_evenly(
    counts: ChannelCounts,
    scores: Tensor,
    families: Sequence[int],
    keep: int,
    floors: Sequence[int],
    stay: Sequence[bool] | None = None,
) -> None:
    """Remove the same share of every family, as little as leaves at most `keep` weights; lowest scores first.

    A family of `n` units loses `round(t * n)` of them, with the same `t` for all, but never its last one.
    Units that a floor needs, and those that are marked in `stay`, are left.
    """
    members: dict[int, list[int]] = {}
    for unit in scores.argsort(stable=True).tolist():
        members.setdefault(families[unit], []).append(unit)
    for units in members.values():
        units.sort(key=lambda unit: counts.alive[unit])  # what is removed already comes first; otherwise by score
    # Every unit but the last of its family, with the share at which it goes.
    steps = sorted(
        ((place + 0.5) / len(units), family, place, unit)
        for family, units in members.items()
        for place, unit in enumerate(units[:-1])
    )
    for _, _, _, unit in steps:
        if counts.kept <= keep:
            break
        if counts.alive[unit] and not (stay and stay[unit]) and counts.respects(floors, unit):
            counts.switch(unit)

"""Numbers of channels that hardware likes: units go in bundles, so that the number that is left is a multiple."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .budgets import Costs
from .channel_counts import ChannelCounts
from .channel_table import ChannelTable


def bundle_sizes(table: ChannelTable, round_to: int) -> dict[int, int]:
    """For each family, how many of its units have a multiple of `round_to` channels together.

    A unit may be several channels of a layer, such as a head. What they have in common counts.
    """
    common = dict.fromkeys(table.families, 0)
    for channels in (*table.outputs, *table.inputs):
        for unit, width in enumerate(torch.bincount(channels, minlength=table.units)[: table.units].tolist()):
            common[table.families[unit]] = math.gcd(common[table.families[unit]], width)
    return {family: round_to // math.gcd(round_to, max(1, width)) for family, width in common.items()}


@dataclass(frozen=True)
class Bundles:
    """The units of a network in bundles that are ranked, removed and added as one.

    The bundles of a family have the same number of units, but for its first one: if a family does not have a multiple,
    that one is the remainder. It goes before all others of the family, and does not come back.

    Args:
        of: the bundle of each unit.
        families: the family of each bundle.
        remainders: for each bundle, the remainder of its family; -1 if there is none.
        alive: the bundles that are kept so far.
        ranked: those that an event chooses from: the same, and units that may come back.
    """

    of: Tensor
    families: list[int]
    remainders: list[int]
    alive: Tensor
    ranked: Tensor

    @classmethod
    def by_score(
        cls, table: ChannelTable, scores: Tensor, alive: Sequence[bool], ranked: Sequence[bool], sizes: dict[int, int]
    ) -> Bundles:
        """Bundle units of similar scores. `sizes` says how many of each family."""
        of, families, remainders = torch.zeros(table.units, dtype=torch.int64), list[int](), list[int]()
        flags = list[tuple[bool, bool]]()
        groups: dict[tuple[int, bool, bool], list[int]] = {}
        for unit in scores.argsort(stable=True).tolist():
            groups.setdefault((table.families[unit], alive[unit], ranked[unit]), []).append(unit)
        for (family, is_alive, is_ranked), units in sorted(groups.items()):
            size = sizes[family] if is_ranked else len(units)
            rest = len(units) % size
            starts = [*([0] if rest else []), *range(rest, len(units), size)]
            first = len(families) if rest and is_alive else -1
            for start, end in zip(starts, [*starts[1:], len(units)], strict=True):
                of[units[start:end]] = len(families)
                families.append(family)
                remainders.append(first)
                returns = is_ranked and not (rest and start == 0 and not is_alive)  # whole bundles come back
                flags.append((is_alive, returns))
        marks = torch.tensor(flags, dtype=torch.bool).reshape(-1, 2)
        return cls(of, families, remainders, marks[:, 0], marks[:, 1])

    def scores(self, scores: Tensor) -> Tensor:
        """The mean score of each bundle."""
        total = torch.zeros(len(self.families), dtype=torch.float64).index_add_(0, self.of, scores.double())
        return total / torch.bincount(self.of, minlength=len(self.families)).clamp_min(1)

    def counts(self, costs: Costs, alive: Tensor) -> ChannelCounts:
        """What is kept with some of the bundles."""
        number = torch.cat([self.of, torch.tensor([len(self.families)])])
        sides = [number[side] for side in costs.outputs], [None if s is None else number[s] for s in costs.inputs]
        counts = BundledCounts(len(self.families), *sides, costs.positions, alive, costs.prices)
        counts.remainders = self.remainders
        return counts

    def units(self, alive: Sequence[bool]) -> list[bool]:
        """The units of some bundles."""
        return [alive[bundle] for bundle in self.of.tolist()]


class BundledCounts(ChannelCounts):
    """Counts in which the remainder of a family goes first, and does not come back."""

    remainders: Sequence[int]
    """For each bundle, the remainder of its family; -1 if there is none."""

    def change(self, unit: int) -> int:
        is_remainder = self.remainders[unit] == unit
        return NEVER_FITS if is_remainder and not self.alive[unit] else super().change(unit)

    def respects(self, floors: Sequence[int], unit: int) -> bool:
        first = self.remainders[unit]
        return (first in (-1, unit) or not self.alive[first]) and super().respects(floors, unit)


NEVER_FITS = 1 << 100

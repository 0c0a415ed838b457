"""Pruning whole channels, with everything that is tied to them or reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import Arguments
from ..channels.copies import UnsupportedNetworkError
from ..events import Selection
from ..problems import ChannelWarning, warn
from ..runtime.example_call import NOT_CALLED, ExampleCall
from ..schedules import Pruning
from ..weights import Weight
from .base import Ranking, Units
from .channel_counts import ChannelCounts, remove_evenly, remove_lowest
from .channel_outlook import fewest, remove_with_outlook
from .channel_table import ChannelTable, positions_of_pairs, table_of_network
from .granularity import Granularity


class ChannelUnits(Units):
    """Output channels through residual sums and concatenations, feed-forward features, and whole heads.

    Which channels belong together is found when the first training call shows what the model is called with. A network
    that is shrunk later keeps these units: an event works on whole weights, in which what was removed is pruned.
    """

    def __init__(self, weights: Sequence[Weight], granularity: Granularity, *, per_layer: bool) -> None:
        self.reduce, self.per_layer = granularity.reduce, per_layer
        self.call = ExampleCall()
        self.table: ChannelTable | None = None
        self._least: int | None = None
        self._floors = [0] * len(weights)
        self._weights = list(weights)
        self._warned = self._is_reachable = False

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        self._least = min((p.nonzero for p in plan if p.nonzero is not None), default=None)
        self._floors = list(floors)
        return list(plan)

    def watch(self, model: nn.Module) -> None:
        if self.table is None:
            self.call.watch(model)

    def remove(self) -> None:
        self.call.stop()

    def show(self, arguments: Arguments) -> None:
        if self.call.arguments is None:
            self.call.arguments = arguments

    def ready(self, model: nn.Module) -> None:
        if self.table is None:
            self.table = self._find(model)

    def status(self) -> str:
        return "" if self.table is None else "".join(f"\n{note}" for note in self.table.notes)

    def select(self, ranking: Ranking, keep: int) -> Selection:
        if self.table is None:
            self.table = self._find(ranking.model, ranking.step)
        weights, table = ranking.weights, self.table
        masks = [weight.view.gather(weight.mask) for weight in weights]
        scores = table.scores(
            lambda number: weights[number].view.gather(ranking.scores(number)),
            [None if ranking.ranks_pruned or w.dense else mask for w, mask in zip(weights, masks, strict=True)],
            self.reduce,
            [weight.size for weight in weights],
            ranking.not_finite,
        )
        counts = self._left(ranking, scores, table.alive(masks), keep)
        after = table.masks(torch.tensor(counts.alive, dtype=torch.bool), weights)
        taken = [weight.view.take(mask) for weight, mask in zip(weights, after, strict=True)]
        return Selection.between(ranking.masks, taken, grows=ranking.ranks_pruned)

    def _left(self, ranking: Ranking, scores: Tensor, alive: Tensor, keep: int) -> ChannelCounts:
        """The units that are left after an event."""
        assert self.table is not None
        before = self._counts(alive)
        counts = before.copy()
        if ranking.ranks_pruned:
            self._let_return(counts, scores, ranking.returning(keep))
        left = remove_with_outlook(
            remove_evenly if self.per_layer else remove_lowest,
            counts,
            before,
            scores,
            self.table.families,
            keep,
            keep if self._least is None else self._least,
            self._floors,
        )
        if left.kept > keep and self._least is not None:
            raise ValueError(
                f"step {ranking.step}: granularity='channel' keeps at least {left.kept:,} weights, but the plan says "
                f"{keep:,}; nothing was pruned. {self._advice()}"
            )
        return left

    def _advice(self) -> str:
        return "Lower floor= or the sparsity" if any(self._floors) else "Lower the sparsity"

    def _let_return(self, counts: ChannelCounts, scores: Tensor, most: int) -> None:
        """Add removed units to those that are ranked, the highest scores first, up to a number of weights."""
        limit = counts.kept + most
        for unit in scores.argsort(stable=True, descending=True).tolist():
            if not counts.alive[unit]:
                if counts.kept + counts.change(unit) > limit:
                    return
                counts.switch(unit)

    def _counts(self, alive: Tensor) -> ChannelCounts:
        table = self.table
        assert table is not None
        pairs = positions_of_pairs(table, self._weights)
        return ChannelCounts(table.units, table.outputs, table.inputs, pairs, alive)

    def _find(self, model: nn.Module, step: int = 1) -> ChannelTable:
        """Record the model with what it was called with."""
        if self.call.arguments is None:
            raise ValueError(f"{WHY} {NOT_CALLED}. {FIX}" if step else BEFORE_ANY_CALL)
        try:
            devices = {weight.mask.device for weight in self._weights if weight.mask.is_cuda}
            with torch.random.fork_rng(devices=devices):  # a trial draws numbers, and a resumed run makes it again
                table = table_of_network(model, self._weights, *self.call.arguments)
            return self._checked(table)
        except UnsupportedNetworkError as error:
            raise ValueError(f"{WHY} {error}. {FIX}") from error

    def _checked(self, table: ChannelTable) -> ChannelTable:
        """Refuse a sparsity that whole channels cannot reach, before training starts, and name what is not followed."""
        if self._least is not None and not self._is_reachable:
            before, self.table = self.table, table
            every = self._counts(torch.ones(table.units, dtype=torch.bool))
            self.table = before
            counts = fewest(every, torch.zeros(table.units), table.families, self._least, self._floors)
            if counts.kept > self._least:
                raise ValueError(
                    f"granularity='channel' cannot keep fewer than {counts.kept:,} weights here, but {self._least:,} "
                    "are asked for: the inputs and outputs of the network stay, one channel of each tensor, and what "
                    f"floor= needs. {self._advice()}" + "".join(f"\n  {note}" for note in table.notes[:5])
                )
            self._is_reachable = True
        if table.notes and not self._warned:
            self._warned = True
            shown = "\n  ".join(table.notes[:5])
            warn(
                f"granularity='channel' prunes {table.units:,} channels, but not everything could be followed:\n  "
                f"{shown}",
                ChannelWarning,
            )
        return table

    def __deepcopy__(self, memo: dict[int, Any]) -> ChannelUnits:
        """The copy belongs to the copied layers, and has no hook."""
        new = ChannelUnits.__new__(ChannelUnits)
        vars(new).update(vars(self))
        new.call = self.call.__deepcopy__(memo)
        new._weights = [memo.get(id(weight), weight) for weight in self._weights]
        return new


WHY = "granularity='channel' has to follow the channels through the network, but"
BEFORE_ANY_CALL = (
    "granularity='channel' cannot prune before the first step: the first training call shows which channels belong "
    "together. Prune after step 0, for example with flipout.OneShot(sparsity, steps, at=1), or use flipout.SNIP, which "
    "calls the model itself"
)
FIX = "Use granularity='kernel', a block or a pattern instead, or a model that is called with tensors"

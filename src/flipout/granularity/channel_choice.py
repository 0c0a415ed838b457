"""Pruning whole channels, with everything that is tied to them or reads them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..events import Selection
from ..graph.copies import UnsupportedNetworkError
from ..layers import Layer
from ..runtime.example_call import NOT_CALLED, ExampleCall
from ..schedules import Pruning
from ..warnings import ChannelWarning
from .channel_counts import ChannelCounts, remove_evenly, remove_lowest
from .channel_outlook import fewest, remove_with_outlook
from .channel_table import ChannelTable, positions_of_pairs, table_of_blocks, table_of_network
from .granularity_setting import Granularity
from .unit_choice import UnitChoice, as_selection

if TYPE_CHECKING:
    from ..pruning_event import PruningEvent


class ChannelChoice(UnitChoice):
    """Output channels through residual sums and concatenations, feed-forward features, and whole heads.

    Which channels belong together is found in the model: at once for transformers, and otherwise when the first
    training call shows what the model is called with.
    """

    def __init__(self, layers: Sequence[Layer], granularity: Granularity, *, per_layer: bool) -> None:
        self.reduce, self.per_layer = granularity.reduce, per_layer
        self.call = ExampleCall()
        self.table: ChannelTable | None = None
        self._least: int | None = None
        self._floors = [0] * len(layers)
        self._layers = list(layers)
        self._warned = self._is_reachable = False
        # With an equal share of each family, its original size would have to be known.
        self.survives_shrinking = not per_layer

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        self._least = min((p.nonzero for p in plan if p.nonzero is not None), default=None)
        self._floors = list(floors)
        return list(plan)

    def watch(self, model: nn.Module) -> None:
        if self.table is None:
            self.table = self._of_blocks(model)
        if self.table is None:
            self.call.watch(model)

    def remove(self) -> None:
        self.call.stop()

    def forget(self) -> None:
        self.table = None
        self._is_reachable = True  # of a network that was cut, only the choices so far say what can still be reached

    def ready(self, model: nn.Module) -> None:
        if self.table is None:
            self.table = self._find(model)

    def status(self) -> str:
        return "" if self.table is None else "".join(f"\n{note}" for note in self.table.notes)

    def select(self, event: PruningEvent, keep: int) -> Selection:
        if self.table is None:
            self.table = self._find(event.model, event.step)
        table = self.table
        masks = [layer.mask for layer in event.layers]
        alive = table.alive(masks)
        scores = table.scores(
            event.scores,
            [None if event.reviving or layer.dense else layer.mask for layer in event.layers],
            self.reduce,
            [layer.positions.shape.numel() for layer in event.layers],
            lambda number: event.not_finite(event.layers[number], "scores"),
        )
        counts = self._left(event, scores, alive, keep)
        after = table.masks(torch.tensor(counts.alive, dtype=torch.bool), event.layers)
        aside = [layer.mask for layer in event.parked]
        return as_selection([*masks, *aside], [*after, *aside], reviving=event.reviving)

    def _left(self, event: PruningEvent, scores: Tensor, alive: Tensor, keep: int) -> ChannelCounts:
        """The units that are left after an event."""
        assert self.table is not None
        aside = sum(layer.kept for layer in event.parked)  # they are in no channel of the network any more
        floors = list(self._floors)
        for number, layer in enumerate(event.layers):
            floors[number] -= sum(other.kept for other in event.parked if other.name == layer.name)
        before = self._counts(alive)
        counts = before.copy()
        if event.reviving:
            self._let_return(counts, scores, event.returning(keep - aside))
        left = remove_with_outlook(
            remove_evenly if self.per_layer else remove_lowest,
            counts,
            before,
            scores,
            self.table.families,
            keep - aside,
            (keep if self._least is None else self._least) - aside,
            floors,
        )
        if left.kept > keep - aside and self._least is not None:
            raise ValueError(
                f"step {event.step}: granularity='channel' keeps at least {left.kept + aside:,} weights, but the plan "
                f"says {keep:,}; nothing was pruned. {self._advice()}"
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
        pairs = positions_of_pairs(table, self._layers)
        return ChannelCounts(table.units, table.outputs, table.inputs, pairs, alive)

    def _of_blocks(self, model: nn.Module) -> ChannelTable | None:
        table = table_of_blocks(model, self._layers)
        return None if table is None else self._checked(table)

    def _find(self, model: nn.Module, step: int = 1) -> ChannelTable:
        """Trace the model with what it was called with."""
        if (table := self._of_blocks(model)) is not None:
            return table
        if not step and self.call.inputs is None and self.call.problem == NOT_CALLED:
            raise ValueError(BEFORE_ANY_CALL)
        if self.call.inputs is None:
            raise ValueError(f"{WHY} {self.call.problem}. {FIX}")
        try:
            return self._checked(table_of_network(model, self._layers, self.call.inputs))
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
            warnings.warn(
                f"granularity='channel' prunes {table.units:,} channels, but not everything could be followed:\n  "
                f"{shown}",
                ChannelWarning,
                stacklevel=2,
            )
        return table

    def __deepcopy__(self, memo: dict[int, Any]) -> ChannelChoice:
        """The copy belongs to the copied layers, and has no hook."""
        new = ChannelChoice.__new__(ChannelChoice)
        vars(new).update(vars(self))
        new.call = self.call.__deepcopy__(memo)
        new._layers = [memo.get(id(layer), layer) for layer in self._layers]
        return new


WHY = "granularity='channel' has to follow the channels through the network, but"
BEFORE_ANY_CALL = (
    "granularity='channel' cannot prune before the first step: the first training call shows which channels belong "
    "together. Prune after step 0, for example with flipout.OneShot(sparsity, steps, at=1), or use flipout.SNIP, which "
    "calls the model itself"
)
FIX = "Use granularity='kernel', a block or a pattern instead, or a model that is called with tensors"

"""Pruning whole channels, with everything that is tied to them or reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import Arguments, examples_in
from ..channels.copies import UnsupportedNetworkError
from ..events import Selection
from ..problems import ChannelWarning, warn
from ..runtime.example_call import NOT_CALLED, ExampleCall, is_of_examples
from ..schedules import Pruning, nonzero
from ..weights import Weight
from .base import Ranking, Units
from .budgets import TITLES, Costs, costs_of
from .channel_counts import ChannelCounts, remove_evenly, remove_lowest
from .channel_outlook import fewest, remove_with_outlook
from .channel_report import channel_report
from .channel_table import ChannelTable, table_of_network
from .granularity import Granularity
from .latency import LatencyCurve, measure_latency
from .rounding import Bundles, bundle_sizes


class ChannelUnits(Units):
    """Output channels through residual sums and concatenations, feed-forward features, and whole heads.

    Which channels belong together is found when the first training call shows what the model is called with. A network
    that is shrunk later keeps these units: an event works on whole weights, in which what was removed is pruned.
    Numbers of what is kept are in the unit of the target.
    """

    def __init__(self, weights: Sequence[Weight], granularity: Granularity, *, per_layer: bool) -> None:
        self.granularity, self.per_layer = granularity, per_layer
        self.call = ExampleCall()
        self.table: ChannelTable | None = None
        self.costs: Costs | None = None
        self.curve: LatencyCurve | None = None
        self._last: Pruning | None = None
        self._floors = [0] * len(weights)
        self._weights = list(weights)
        self._zeros: tuple[nn.Module, list[tuple[nn.Parameter, int, Tensor]]] | None = None
        self._warned = self._is_reachable = False

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        self._floors = list(floors)
        target = self.granularity.target
        if target != "weights":
            if any(pruning.sparsity is None for pruning in plan):
                raise ValueError(f"target={target!r} needs a sparsity, and here a threshold decides: give sparsity=")
            plan = [pruning._replace(nonzero=None) for pruning in plan]
        counted = [pruning for pruning in plan if pruning.sparsity is not None]
        self._last = max(counted, key=lambda pruning: pruning.sparsity or 0, default=None)
        return list(plan)

    def keep(self, pruning: Pruning, model: nn.Module) -> int:
        if self.granularity.target == "weights":
            return super().keep(pruning, model)
        self._find(model, pruning.step)
        return self._allowed(pruning)

    def reached(self) -> float | None:
        if self.granularity.target == "weights" or self.costs is None or self.table is None:
            return None
        masks = [weight.view.gather(weight.mask) for weight in self._weights]
        share = self.costs.counts(self.table.alive(masks)).kept / max(1, self.costs.total)
        return 1 - (share if self.curve is None else self.curve.latency_of(share))

    def watch(self, model: nn.Module) -> None:
        if self.table is None:
            self.call.watch(model)

    def remove(self) -> None:
        self.call.stop()

    def show(self, arguments: Arguments) -> None:
        if self.call.arguments is None:
            self.call.arguments = arguments

    def ready(self, model: nn.Module) -> None:
        self._find(model)

    def saved(self) -> str:
        return "" if self.curve is None else self.curve.saved()

    def check(self, saved: str) -> None:
        if self.granularity.target != "latency":
            super().check(saved)
        elif saved:
            LatencyCurve.loaded(saved)

    @torch.no_grad()
    def hold_zeros(self, model: nn.Module) -> None:
        if self.table is None or not self.granularity.residual:
            return
        if self._zeros is None or self._zeros[0] is not model:
            masks = [weight.view.gather(weight.mask) for weight in self._weights]
            pruned = {weight.name for weight in self._weights}
            self._zeros = model, self.table.zeroed(self.table.alive(masks), model, pruned)
        for parameter, dim, index in self._zeros[1]:
            parameter.index_fill_(dim, index, 0)

    def load(self, saved: str) -> None:
        self._zeros = None
        self.curve = LatencyCurve.loaded(saved) if saved else self.curve

    def status(self) -> str:
        if self.table is None or self.costs is None:
            return ""
        allowed = None if self._last is None else self._allowed(self._last)
        target, examples = self.granularity.target, self._examples
        lines = [channel_report(self.table, self.costs, self._weights, target, allowed, examples)]
        if (reached := self.reached()) is not None and self._last is not None:
            title, measured = TITLES[self.granularity.target], ""
            if self.curve is not None:
                measured = f"; a call of two examples took {self.curve.milliseconds:.2f} ms, and the rest is estimated"
            lines.insert(0, f"{reached:.2%} of the {title} are pruned, {self._last.sparsity:.2%} are planned{measured}")
        return "".join(f"\n{line}" for line in lines)

    def select(self, ranking: Ranking, keep: int) -> Selection:
        table = self._find(ranking.model, ranking.step)
        weights = ranking.weights
        masks = [weight.view.gather(weight.mask) for weight in weights]
        scores = table.scores(
            lambda number: weights[number].view.gather(ranking.scores(number)),
            [None if ranking.ranks_pruned or w.dense else mask for w, mask in zip(weights, masks, strict=True)],
            self.granularity.reduce,
            [weight.size for weight in weights],
            ranking.not_finite,
        )
        alive = self._left(ranking, scores, table.alive(masks), keep)
        after = table.masks(torch.tensor(alive, dtype=torch.bool), weights)
        self._zeros = None
        taken = [weight.view.take(mask) for weight, mask in zip(weights, after, strict=True)]
        return Selection.between(ranking.masks, taken, grows=ranking.ranks_pruned)

    def _left(self, ranking: Ranking, scores: Tensor, alive: Tensor, keep: int) -> list[bool]:
        """The units that are left after an event."""
        assert self.table is not None
        assert self.costs is not None
        before = self.costs.counts(alive)
        counts, families = before.copy(), self.table.families
        if ranking.ranks_pruned:
            self._let_return(counts, scores, ranking.returning(keep))
        bundles = self._bundles(self.table, scores, before.alive, counts.alive)
        if bundles is not None:
            before, counts = (bundles.counts(self.costs, each) for each in (bundles.alive, bundles.ranked))
            scores, families = bundles.scores(scores), bundles.families
        least = keep if self._last is None else min(keep, self._allowed(self._last))
        left = remove_with_outlook(
            remove_evenly if self.per_layer else remove_lowest,
            counts,
            before,
            scores,
            families,
            keep,
            least,
            self.costs.floors(self._floors),
        )
        if left.kept > keep and self._last is not None:
            raise ValueError(
                f"step {ranking.step}: granularity='channel' keeps at least {left.kept:,} {self._title}, but the plan "
                f"says {keep:,}; nothing was pruned. {self._advice()}"
            )
        return left.alive if bundles is None else bundles.units(left.alive)

    def _bundles(
        self, table: ChannelTable, scores: Tensor, alive: Sequence[bool], ranked: Sequence[bool]
    ) -> Bundles | None:
        """Units that go together so that multiples are left; None if each goes by itself."""
        if self.granularity.round_to == 1:
            return None
        return Bundles.by_score(table, scores, alive, ranked, bundle_sizes(table, self.granularity.round_to))

    def _allowed(self, pruning: Pruning) -> int:
        """What a pruning of the plan keeps at most, in the unit of the target."""
        if pruning.nonzero is not None:
            return pruning.nonzero
        assert self.costs is not None
        assert pruning.sparsity is not None
        sparsity = pruning.sparsity if self.curve is None else 1 - self.curve.share_for(1 - pruning.sparsity)
        return nonzero(self.costs.total, sparsity)

    @property
    def _title(self) -> str:
        target = self.granularity.target
        return TITLES["macs" if target == "latency" else target]

    @property
    def _examples(self) -> int:
        """How many examples the costs are of. Messages show those of one, as the model card does."""
        if self.granularity.target not in ("macs", "latency") or self.call.arguments is None:
            return 1
        return max(1, examples_in(self.call.arguments)) if is_of_examples(self.call.arguments) else 1

    def _advice(self) -> str:
        reasons = ["floor="] if any(self._floors) else []
        reasons += ["round_to="] if self.granularity.round_to > 1 else []
        return f"Lower {', '.join([*reasons, 'or the sparsity'])}" if reasons else "Lower the sparsity"

    def _let_return(self, counts: ChannelCounts, scores: Tensor, most: int) -> None:
        """Add removed units to those that are ranked, the highest scores first, up to a number of weights."""
        limit = counts.kept + most
        for unit in scores.argsort(stable=True, descending=True).tolist():
            if not counts.alive[unit]:
                if counts.kept + counts.change(unit) > limit:
                    return
                counts.switch(unit)

    def _find(self, model: nn.Module, step: int = 1) -> ChannelTable:
        """The channels of the model, which is recorded once with what it was called with."""
        if self.table is not None:
            return self.table
        if self.call.arguments is None:
            raise ValueError(f"{WHY} {NOT_CALLED}. {FIX}" if step else BEFORE_ANY_CALL)
        args, kwargs = self.call.arguments
        try:
            devices = {weight.mask.device for weight in self._weights if weight.mask.is_cuda}
            with torch.random.fork_rng(devices=devices):  # a trial draws numbers, and a resumed run makes it again
                table = table_of_network(model, self._weights, args, kwargs, residual=self.granularity.residual)
                self.costs = costs_of(self.granularity.target, table, model, self._weights)
                if self.granularity.target == "latency" and self.curve is None:
                    self.curve = measure_latency(model, table, args, kwargs)
            self._check(table, self.costs)
        except UnsupportedNetworkError as error:
            raise ValueError(f"{WHY} {error}. {FIX}") from error
        self.table = table
        return table

    def _check(self, table: ChannelTable, costs: Costs) -> None:
        """Refuse a sparsity that whole channels cannot reach, before training starts, and name what is not followed."""
        if self._last is not None and not self._is_reachable:
            least = self._allowed(self._last)
            every, scores = [True] * table.units, torch.zeros(table.units)
            bundles = self._bundles(table, scores, every, every)
            families = table.families if bundles is None else bundles.families
            whole = torch.tensor(every, dtype=torch.bool)
            counts = costs.counts(whole) if bundles is None else bundles.counts(costs, bundles.alive)
            left = fewest(counts, torch.zeros(len(families)), families, least, costs.floors(self._floors))
            if left.kept > least:
                kept, asked = (f"{number // self._examples:,}" for number in (left.kept, least))
                raise ValueError(
                    f"granularity='channel' cannot keep fewer than {kept} {self._title} here, but {asked} are asked "
                    "for: the inputs and outputs of the network stay, one channel of each tensor, and what floor= "
                    f"needs. {self._advice()}" + "".join(f"\n  {note}" for note in table.notes[:5])
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

    def __deepcopy__(self, memo: dict[int, Any]) -> ChannelUnits:
        """The copy belongs to the copied layers, and has no hook."""
        new = ChannelUnits.__new__(ChannelUnits)
        vars(new).update(vars(self))
        new.call = self.call.__deepcopy__(memo)
        new._zeros = None
        new._weights = [memo.get(id(weight), weight) for weight in self._weights]
        return new


WHY = "granularity='channel' has to follow the channels through the network, but"
BEFORE_ANY_CALL = (
    "granularity='channel' cannot prune before the first step: the first training call shows which channels belong "
    "together. Prune after step 0, for example with flipout.OneShot(sparsity, steps, at=1), or use flipout.SNIP, which "
    "calls the model itself"
)
FIX = "Use granularity='kernel', a block or a pattern instead, or a model that is called with tensors"

"""A pruning event: score, select, apply, record. A method overrides the parts that it does differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .criteria import Criterion
from .dead_weights import DeadWeights
from .events import Event, Selection
from .granularity.unit_choice import UnitChoice
from .hidden_values import no_hidden_values, set_limits
from .layers import Layer, count_layers
from .revival import Revival
from .runtime.optimizer_state import clear_state
from .runtime.runner import Runner
from .runtime.scoring import check_scores, comparison_type
from .schedules import Pruning, Schedule
from .selection import NotFiniteError, choose, choose_dead_first, smallest
from .shards.parts import Part
from .shrinking.ranked_layers import RankedLayers


class PruningEvent:
    """The part of a pruner that carries out one pruning of its plan."""

    model: nn.Module
    layers: list[Layer]
    optimizer: torch.optim.Optimizer
    criterion: Criterion
    schedule: Schedule
    scope: Literal["global", "layer"]
    floors: Sequence[int]
    dead_weights: DeadWeights | None
    units: UnitChoice | None
    runner: Runner
    events: list[Event]
    revival: Revival | None
    asked: list[str]
    """The statistics that the criterion takes."""

    @property
    def step(self) -> int:
        """The number of optimizer steps taken."""
        raise NotImplementedError

    @property
    def reviving(self) -> bool:
        """Whether a pruning event at this step ranks the hidden values of all weights, not only those that are kept."""
        raise NotImplementedError

    @classmethod
    def chooses_single_weights(cls) -> bool:
        """Whether a method has its own way to choose single weights, so that it cannot prune larger units."""
        return cls.select is not PruningEvent.select

    @property
    def parked(self) -> Sequence[Layer]:
        """Weights that the masks keep, but that were removed from the network with a channel that nothing reads."""
        return ()

    @property
    def trained(self) -> Sequence[Layer]:
        """What the optimizer trains: the layers of the network, and the parked weights."""
        return [*self.layers, *self.parked]

    @property
    def nonzero(self) -> int:
        """The number of weights that the masks keep. See `lost_zeros` for whether the model agrees."""
        return sum(layer.kept for layer in self.trained)

    @property
    def prunable(self) -> int:
        """The number of weights that can be pruned, including those that are."""
        return sum(layer.positions.shape.numel() for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """`1 - nonzero / prunable`, from the masks. `check` compares the masks with the weights of the model."""
        return 1 - self.nonzero / self.prunable

    @property
    def pieces(self) -> list[Part | None]:
        """For each layer, the part of a sharded weight that this rank holds; None for an ordinary weight."""
        return [layer.part for layer in self.layers]

    def agree(self, selection: Selection) -> None:
        """Called before a selection is applied: the ranks of a data-parallel training compare theirs."""

    def prune(self, pruning: Pruning) -> None:
        """Carry out one pruning of the plan."""
        keep = self.keep(pruning)
        for layer in self.layers:
            self.runner.wake(layer)
        try:
            selection = self.select(keep)
            if type(self).select is not PruningEvent.select:  # ours is exact by construction
                selection.check(type(self).__name__, self.layers, keep, self.floors)
            self.agree(selection)
            self.apply(selection)
        finally:
            for layer in self.layers:
                self.runner.hide(layer)
        self.record(selection)

    def keep(self, pruning: Pruning) -> int:
        """How many weights are kept after a pruning. By default what the plan says."""
        assert pruning.nonzero is not None, "a schedule without counts needs a method that overrides keep()"
        return pruning.nonzero

    def score(self, layer: Layer) -> Tensor:
        """The score of each weight of a layer; the lowest are pruned first."""
        scores = self.runner.scores(
            layer, self.criterion, self.asked, lambda: {key: self.value(layer, key) for key in self.asked}
        )
        return check_scores(scores, self.criterion, layer)

    def select(self, keep: int) -> Selection:
        """Choose what to prune, and what to grow, so that exactly `keep` weights are kept."""
        return self._select_weights(keep) if self.units is None else self.units.select(self, keep)

    def _select_weights(self, keep: int) -> Selection:
        ranked, ranking = RankedLayers(self.layers, self.parked), self.ranking()
        masks, shares = ranked.masks, {"per_layer": self.scope == "layer", "sizes": ranked.sizes}
        try:
            candidates = self.candidates(keep, ranking) if self.reviving else masks
            scores = partial(ranked.join, tensor_of=self.score)
            chosen = self._chooser(ranked)(scores, candidates, keep, floors=self.floors, **shares, **ranking)
        except NotFiniteError as error:
            raise self.not_finite(self.layers[error.tensor], "scores") from None
        if not self.reviving:
            return Selection(ranked.split(chosen))
        left = [alive & ~gone for alive, gone in zip(candidates, chosen, strict=True)]
        pruned = [mask & ~after for mask, after in zip(masks, left, strict=True)]
        return Selection(pruned, [after & ~mask for mask, after in zip(masks, left, strict=True)])

    def scores(self, number: int) -> Tensor:
        """The scores of a layer, by its number."""
        return self.score(self.layers[number])

    def ranking(self) -> dict[str, Any]:
        """How scores are compared: their type, what compiles elementwise functions, and what is on other ranks."""
        scored = next((layer for layer in self.layers if layer.size), self.layers[0])
        dtype = comparison_type(self.score(scored).dtype, {layer.weight.dtype for layer in self.layers})
        ranks = {"pieces": self.pieces} if any(self.pieces) else {}
        return {"dtype": dtype, "run": self.runner.elementwise, **ranks}

    def returning(self, keep: int) -> int:
        """The most weights that can come back in an event."""
        return 0 if self.revival is None else self.revival.returning(self.step, self.schedule.steps, keep)

    def candidates(self, keep: int, ranking: dict[str, Any]) -> list[Tensor]:
        """The weights that an event chooses from: the kept ones, and the pruned ones that may come back."""
        out = self.prunable - self.nonzero - self.returning(keep)
        lowest = smallest(self.scores, [~layer.mask for layer in self.layers], max(0, out), **ranking)
        return [~mark for mark in lowest]

    def find_dead(self, masks: Sequence[Tensor]) -> dict[int, Tensor]:
        """The weights on no live path under some masks, by the number of their layer, if they are pruned first."""
        dead = self.dead_weights
        return dead.find(self.layers, masks) if dead is not None and self.step and dead.ready(self.model) else {}

    def _chooser(self, ranked: RankedLayers) -> Callable[..., list[Tensor]]:
        """The function that chooses what to prune. Before the first step no call has shown what the model reads."""
        dead = self.dead_weights
        if dead is None or not self.step or not dead.ready(self.model):
            return choose
        return partial(choose_dead_first, partial(ranked.find_dead, dead.find))

    def apply(self, selection: Selection) -> None:
        """Change the masks, zero the pruned weights, and clear the optimizer's state of every weight that changed.

        A weight that grows back starts at 0, without momentum. A hidden value goes on as it is, with its momentum.
        """
        if self.reviving:
            self._apply_to_hidden_values(selection)
            return
        for number, layer in enumerate(self.trained):
            layer.mask ^= selection.prune[number]
            self.runner.zero(layer)
            # Of weights that grow as well: they are still pruned here.
            clear_state(self.optimizer, layer.weight, layer.bytes, partial(self.runner.clear, layer))
            if selection.grow:
                layer.mask |= selection.grow[number]
        count_layers(self.trained)

    def _apply_to_hidden_values(self, selection: Selection) -> None:
        """Change the masks and the thresholds. The weights hold their hidden values, and are hidden again after it."""
        for number, layer in enumerate(self.layers):
            layer.mask ^= selection.prune[number]
            layer.mask |= selection.grow[number]
            if layer.hidden is None:
                layer.hidden = no_hidden_values(layer.local)
                layer.hidden.awake = True
            # In half precision a shrunk weight does not determine its hidden value, so it is not shrunk.
            shrink = self.revival is not None and self.revival.shrink and layer.weight.element_size() >= 4
            set_limits(layer.hidden, layer.local, layer.mask, shrink=shrink, part=layer.part)
        count_layers(self.layers)

    def drop_hidden_values(self) -> None:
        """Freeze the masks: forget the hidden values, and the optimizer's state of the pruned weights."""
        for layer in self.layers:
            if layer.hidden is not None:
                layer.hidden = None
                clear_state(self.optimizer, layer.weight, layer.bytes, partial(self.runner.clear, layer))

    def record(self, selection: Selection) -> None:
        """Append an `Event` to `events`."""
        grown = selection.count_grown(self.trained)
        self.events.append(Event(self.step, self.sparsity, self.nonzero, self.kept_by_name(), grown))

    def kept_by_name(self) -> dict[str, int]:
        """How many weights the masks keep of each weight tensor."""
        kept = dict.fromkeys((layer.name for layer in self.layers), 0)
        for layer in self.trained:
            kept[layer.name] += layer.kept
        return kept

    def value(self, layer: Layer, statistic: str) -> Tensor:
        """The value of a statistic of a layer."""
        return layer.statistics[statistic].value(layer.local.detach(), self.step)

    def not_finite(self, layer: Layer, what: str) -> FloatingPointError:
        """The error for NaN or infinite numbers in a layer."""
        return FloatingPointError(
            f"{layer.name} has NaN or infinite {what} at step {self.step}; nothing was pruned. Check for a loss that "
            "diverged (lower the learning rate, clip gradients) or a criterion that divides by zero"
        )

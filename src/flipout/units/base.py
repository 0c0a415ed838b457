"""Units: what is pruned as one, and what an event ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from ..channels.comparison import Arguments
from ..events import Selection
from ..problems import Need, NotFiniteError
from ..ranking import choose, choose_dead_first, smallest
from ..ranking.ranking import Run
from ..runtime.scoring import comparison_type
from ..schedules import Pruning
from ..weights import Weight
from .dead import DeadWeights


@dataclass(frozen=True)
class Ranking:
    """What an event ranks: the weights with their scores, and which of them may go and come back.

    Args:
        model: the network.
        step: the step of the event.
        weights: the weight tensors; in an event their parameters hold what is trained.
        score: the score of each element of a weight.
        floors: the least number of elements that each keeps.
        per_layer: whether each is pruned by the same share, in place of a ranking of all together.
        ranks_pruned: whether pruned weights are ranked too, and may come back.
        returning: the most that can come back, for the number that is kept.
        dead: finds weights on no live path.
        run: compiles elementwise functions.
    """

    model: nn.Module
    step: int
    weights: Sequence[Weight]
    score: Callable[[Weight], Tensor]
    floors: Sequence[int]
    per_layer: bool
    ranks_pruned: bool
    returning: Callable[[int], int]
    dead: DeadWeights
    run: Run

    @property
    def masks(self) -> list[Tensor]:
        return [weight.mask for weight in self.weights]

    def scores(self, number: int) -> Tensor:
        """The scores of a weight, by its number."""
        return self.score(self.weights[number])

    def options(self) -> dict[str, Any]:
        """How scores are compared: their type, what compiles elementwise functions, and which elements are here."""
        scored = next((weight for weight in self.weights if weight.size), self.weights[0])
        dtype = comparison_type(self.score(scored).dtype, {weight.parameter.dtype for weight in self.weights})
        return {"dtype": dtype, "run": self.run, "views": [weight.view for weight in self.weights]}

    def candidates(self, keep: int, options: Mapping[str, Any]) -> list[Tensor]:
        """The weights that an event chooses from: the kept ones, and the pruned ones that may come back."""
        if not self.ranks_pruned:
            return self.masks
        pruned = sum(weight.size - weight.kept for weight in self.weights)
        lowest = smallest(self.scores, [~mask for mask in self.masks], max(0, pruned - self.returning(keep)), **options)
        return [~mark for mark in lowest]

    @property
    def finds_dead(self) -> bool:
        """Whether weights on no live path are pruned first."""
        return self.dead.ready(self.model, self.step)

    def find_dead(self, masks: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """The weights on no live path under some masks, by the number of their tensor."""
        return self.dead.find(self.weights, masks)

    def not_finite(self, number: int, what: str = "scores") -> FloatingPointError:
        """The error for NaN or infinite numbers in a weight."""
        return FloatingPointError(
            f"{self.weights[number].name} has NaN or infinite {what} at step {self.step}; nothing was pruned. Check "
            "for a loss that diverged (lower the learning rate, clip gradients) or a criterion that divides by zero"
        )


class Units:
    """Single weights. There is a subclass for each larger kind of unit."""

    needs: Mapping[Need, str] = MappingProxyType({})
    """What the units are incompatible with; see `flipout.problems`."""

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        """The prunings of a schedule in whole units. Prunings that would change nothing are left out."""
        return list(plan)

    def select(self, ranking: Ranking, keep: int) -> Selection:
        """Choose what to prune, and what comes back, so that exactly `keep` weights are kept."""
        options = ranking.options()
        pick = partial(choose_dead_first, ranking.find_dead) if ranking.finds_dead else choose
        try:
            candidates = ranking.candidates(keep, options)
            chosen = pick(
                ranking.scores, candidates, keep, floors=ranking.floors, per_layer=ranking.per_layer, **options
            )
        except NotFiniteError as error:
            raise ranking.not_finite(error.tensor) from None
        left = [alive & ~gone for alive, gone in zip(candidates, chosen, strict=True)]
        return Selection.between(ranking.masks, left, grows=ranking.ranks_pruned)

    def keep(self, pruning: Pruning, model: nn.Module) -> int:
        """What is kept after a pruning of the plan: a number of weights, or what `select` takes instead."""
        assert pruning.nonzero is not None, "a schedule without counts needs a method that overrides keep()"
        return pruning.nonzero

    def reached(self) -> float | None:
        """The share of the target that is pruned, if it is not that of weights."""
        return None

    def watch(self, model: nn.Module) -> None:
        """Look at the next training call of the model, if the units depend on it."""

    def ready(self, model: nn.Module) -> None:
        """Find the units before the first step, if they depend on the calls of the model."""

    def remove(self) -> None:
        """Leave no hook in the model."""

    def show(self, arguments: Arguments) -> None:
        """Note what the model is called with, if no call was seen."""

    def hold_zeros(self, model: nn.Module) -> None:
        """Zero what else belongs to removed units in a network, beside weights."""

    def saved(self) -> str:
        """What was measured, for the state of a pruner."""
        return ""

    def check(self, saved: str) -> None:
        """Refuse what `saved` cannot have returned."""
        if saved:
            raise ValueError("`units` of the state is not empty, but these units measure nothing")

    def load(self, saved: str) -> None:
        """Restore what `saved` returned."""

    def status(self) -> str:
        """Lines for the summary of a pruner, each with a line break before it."""
        return ""

"""What the pruner asks of a granularity: the plan in whole units, and the choice at an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..events import Selection
from ..schedules import Pruning

if TYPE_CHECKING:
    from ..pruning_event import PruningEvent


class UnitChoice:
    """Plans and chooses in whole units. There is a subclass for each kind of unit."""

    survives_shrinking = False
    """Whether units are still whole after channels were removed from the network."""

    def planned(self, plan: Sequence[Pruning], prunable: int, floors: Sequence[int]) -> list[Pruning]:
        """The prunings of a schedule in whole units. Prunings that would change nothing are left out."""
        raise NotImplementedError

    def select(self, event: PruningEvent, keep: int) -> Selection:
        """Choose what to prune, and what comes back."""
        raise NotImplementedError

    def watch(self, model: nn.Module) -> None:
        """Look at the next training call of the model, if the units depend on it."""

    def ready(self, model: nn.Module) -> None:
        """Find the units before the first step, if they depend on the calls of the model."""

    def remove(self) -> None:
        """Leave no hook in the model."""

    def forget(self) -> None:
        """Find the units again, because the modules of the model have changed."""

    def status(self) -> str:
        """Lines for the summary of a pruner, each with a line break before it."""
        return ""


def as_selection(masks: Sequence[Tensor], after: Sequence[Tensor], *, reviving: bool) -> Selection:
    """The selection that changes the masks to others."""
    pruned = [mask & ~kept for mask, kept in zip(masks, after, strict=True)]
    return Selection(pruned, [kept & ~mask for mask, kept in zip(masks, after, strict=True)] if reviving else ())

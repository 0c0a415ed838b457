"""Guards: what is checked around the steps of a pruner. Each looks for one kind of mistake."""

from __future__ import annotations

from ..events import Selection
from ..host import Host


class Guard:
    """Called at certain moments, in the order of the pruner's list of guards."""

    def before_step(self, pruner: Host) -> None:
        """Before each update, when the gradients are complete."""

    def before_apply(self, pruner: Host, selection: Selection) -> None:
        """Before an event changes anything."""

    def after_step(self, pruner: Host) -> None:
        """After each update."""

    def saving(self, pruner: Host) -> None:
        """Before a state is saved."""

    def loaded(self, pruner: Host) -> None:
        """After a state was loaded."""

    def removed(self, pruner: Host) -> None:
        """After the pruner was removed from its optimizer."""

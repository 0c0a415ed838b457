"""Shrinking in a run: the network gets smaller while it trains, where that pays."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import flipout

from .settings import Settings


class Shrinker:
    """Shrinks the network of a run after prunings.

    A run without pruning, with the aim test, or of a method that needs the whole network goes on without. So does a
    run of a network that cannot be shrunk, with a `NotShrunkWarning`. A method that adds a penalty to the loss is
    shrunk after its last pruning: the penalty does not reach weights that are removed.
    """

    def __init__(self, settings: Settings, pruner: flipout.Pruner) -> None:
        self._pruner = pruner
        self._wanted = settings.shrink and not settings.aim and not pruner.needs_whole_network
        self._has_penalty = settings.record.needs.penalty

    def after_step(self, images: Tensor) -> None:
        """Shrink the network, if that saves time."""
        if not self._wanted or (self._has_penalty and not self._pruner.finished):
            return
        if self._pruner.worth_shrinking:
            self._pruner.shrink(images)

    def record(self) -> list[dict[str, Any]]:
        """The shrinks so far, as plain data."""
        return [shrink._asdict() for shrink in self._pruner.shrinks]

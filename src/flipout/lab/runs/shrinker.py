"""Shrinking in a run: the network gets smaller while it trains, where that pays."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import flipout

from .settings import Settings


class Shrinker:
    """Shrinks the network of a run after prunings.

    A run without pruning, with the aim test, or of a method that needs the whole network goes on without. So does a
    run of a network that cannot be shrunk, with a `NotShrunkWarning`.
    """

    def __init__(self, settings: Settings, pruner: flipout.Pruner) -> None:
        self._pruner = pruner
        self._wanted = settings.shrink and not settings.aim and not pruner.needs_whole_network

    def after_step(self, images: Tensor) -> None:
        """Shrink the network, if that saves time."""
        if self._wanted and self._pruner.worth_shrinking:
            self._pruner.shrink(images)

    def record(self) -> list[dict[str, Any]]:
        """The shrinks so far, as plain data."""
        return [shrink._asdict() for shrink in self._pruner.shrinks]

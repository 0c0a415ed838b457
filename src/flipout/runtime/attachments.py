"""The pruners that are at work: one to a weight."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..layers import Layer


class HasLayers(Protocol):
    """A pruner, as far as this file is concerned."""

    layers: list[Layer]


_pruners: weakref.WeakSet[HasLayers] = weakref.WeakSet()


def add(pruner: HasLayers) -> None:
    _pruners.add(pruner)


def discard(pruner: HasLayers) -> bool:
    """Whether it was at work."""
    was = pruner in _pruners
    _pruners.discard(pruner)
    return was


def refuse_second(layers: Sequence[Layer]) -> None:
    """Refuses to prune what another pruner prunes."""
    mine = {id(layer.weight) for layer in layers}
    if any(id(layer.weight) in mine for other in _pruners for layer in other.layers):
        gc.collect()  # one that nobody holds any more lives on in a cycle with its optimizer
    for other in _pruners:
        if shared := [layer.name for layer in other.layers if id(layer.weight) in mine]:
            raise ValueError(
                f"{', '.join(shared)} already belongs to {other!r}: call remove() on that one first, or give each "
                "pruner its own weights with include= and exclude="
            )


def mask_of(weight: Tensor) -> Tensor | None:
    """The mask of a weight, if a pruner is attached to it."""
    return next((layer.mask for pruner in _pruners for layer in pruner.layers if layer.weight is weight), None)

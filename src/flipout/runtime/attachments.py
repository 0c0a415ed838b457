"""The attached pruners: at most one for each weight."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..layers import Layer


class HasLayers(Protocol):
    """The part of a pruner that this file uses."""

    layers: list[Layer]


_pruners: weakref.WeakSet[HasLayers] = weakref.WeakSet()
_lock = threading.RLock()  # reentrant, because the garbage collector may drop a pruner while it is held


def add(pruner: HasLayers) -> None:
    """Add a pruner, unless another one was attached to its weights in the meantime."""
    with _lock:
        refuse_second(pruner.layers)
        _pruners.add(pruner)


def contains(pruner: HasLayers) -> bool:
    return pruner in _pruners


def discard(pruner: HasLayers) -> bool:
    """Remove a pruner; return whether it was attached."""
    with _lock:
        was = pruner in _pruners
        _pruners.discard(pruner)
    return was


def refuse_second(layers: Sequence[Layer]) -> None:
    """Refuse weights that another pruner prunes."""
    mine = {id(layer.weight) for layer in layers}
    if any(id(layer.weight) in mine for other in attached() for layer in other.layers):
        gc.collect()  # a dropped pruner lives on in a reference cycle with its optimizer
    for other in attached():
        if shared := [layer.name for layer in other.layers if id(layer.weight) in mine]:
            raise ValueError(
                f"{', '.join(shared)} is already pruned by {other!r}: call remove() on it first, or give each "
                "pruner its own weights with include= and exclude="
            )


def layer_of(weight: Tensor) -> Layer | None:
    """The layer of a weight, or None if no pruner is attached to it."""
    return next((layer for pruner in attached() for layer in pruner.layers if layer.weight is weight), None)


def attached() -> list[HasLayers]:
    """The pruners that are attached at the moment."""
    with _lock:
        return list(_pruners)

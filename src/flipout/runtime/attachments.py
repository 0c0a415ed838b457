"""The attached pruners: at most one for each weight."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..weights import Weight


class HasWeights(Protocol):
    """The part of a pruner that this file uses."""

    weights: list[Weight]


_pruners: weakref.WeakSet[HasWeights] = weakref.WeakSet()
_lock = threading.RLock()  # reentrant, because the garbage collector may drop a pruner while it is held


def add(pruner: HasWeights) -> None:
    """Add a pruner, unless another one was attached to its weights in the meantime."""
    with _lock:
        refuse_second(pruner.weights)
        _pruners.add(pruner)


def contains(pruner: HasWeights) -> bool:
    return pruner in _pruners


def discard(pruner: HasWeights) -> bool:
    """Remove a pruner; return whether it was attached."""
    with _lock:
        was = pruner in _pruners
        _pruners.discard(pruner)
    return was


def refuse_second(weights: Sequence[Weight]) -> None:
    """Refuse weights that another pruner prunes."""
    mine = {id(weight.parameter) for weight in weights}
    if any(id(weight.parameter) in mine for other in attached() for weight in other.weights):
        gc.collect()  # a dropped pruner lives on in a reference cycle with its optimizer
    for other in attached():
        if shared := [weight.name for weight in other.weights if id(weight.parameter) in mine]:
            raise ValueError(
                f"another pruner is attached to {', '.join(shared)}: {other!r}. Call its remove() first, or give each "
                "pruner its own weights with include= and exclude="
            )


def find(parameter: Tensor) -> tuple[HasWeights, Weight] | None:
    """The pruner of a parameter and its weight, or None if no pruner is attached to it."""
    pairs = ((pruner, weight) for pruner in attached() for weight in pruner.weights)
    return next((pair for pair in pairs if pair[1].parameter is parameter), None)


def attached() -> list[HasWeights]:
    """The pruners that are attached at the moment."""
    with _lock:
        return list(_pruners)

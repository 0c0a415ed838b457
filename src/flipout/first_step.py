"""What a pruner does once, before its first step: the weights that training starts from are known only then."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .fingerprints import fingerprints
from .layers import Layer, count_marks
from .rank_agreement import check_ranks
from .shards.parts import on_any_rank
from .warnings import ForgottenStateWarning, StaleMasksWarning

if TYPE_CHECKING:
    from .pruner import Pruner

MOSTLY = 0.5
"""A network with a larger share of zeros than this looks like a pruned one."""


class FirstStep:
    """The checks before the first step of a pruner without a loaded state.

    `notes_weights` is whether the method takes an initial state from the weights, in `start()`. If the weights were
    changed since the pruner was attached, it takes that state again.
    """

    def __init__(self, pruner: Pruner, notes_weights: bool) -> None:
        self._weights = fingerprints(pruner.model.parameters()) if notes_weights else None

    @torch.no_grad()
    def renew(self, pruner: Pruner) -> None:
        """Take the initial state again if weights were changed, such as loaded, since the last time."""
        if self._weights is None:
            return
        before, self._weights = self._weights, fingerprints(pruner.model.parameters())
        if on_any_rank(before != self._weights, pruner.pieces):
            pruner.start()

    def take(self, pruner: Pruner) -> None:
        """Prepare a pruner for its first step."""
        for layer in pruner.layers:
            for statistic in layer.statistics.values():
                statistic.started(layer.local)
        self.renew(pruner)
        if any(not layer.dense for layer in pruner.layers):
            check_ranks(pruner)
        if pruner.masks_are_stale():
            _warn_of_stale_masks()
        if pruner.plan() and (zeros := _share_of_zeros(pruner.layers)) > MOSTLY:
            _warn_of_forgotten_state(type(pruner).__name__, zeros)


def _share_of_zeros(layers: Sequence[Layer]) -> float:
    """The share of kept weights that are exactly 0. A tensor of zeros alone is initialized so, not pruned."""
    nonzero = count_marks([(layer.local != 0) & layer.mask for layer in layers], layers)
    pairs = [(layer.kept, count) for layer, count in zip(layers, nonzero, strict=True) if count]
    return 1 - sum(count for _, count in pairs) / sum(kept for kept, _ in pairs) if pairs else 0.0


def _warn_of_forgotten_state(method: str, zeros: float) -> None:
    warnings.warn(
        f"{zeros:.1%} of the weights that {method} is about to train and prune are exactly 0, and no state was loaded. "
        "Is this network pruned already? To resume, call pruner.load_state_dict() with the saved state before the "
        "first step. To fine-tune it and keep its zeros, use flipout.KeepZeros instead. Otherwise the zeros are "
        "trained like all weights, and the network is pruned again from the start",
        ForgottenStateWarning,
        stacklevel=2,
    )


def _warn_of_stale_masks() -> None:
    warnings.warn(
        "the weights were changed after the pruner had chosen which of them to prune, when it was attached: the masks "
        "fit the old weights. Load the weights before you create the pruner; to resume, also load the pruner's state",
        StaleMasksWarning,
        stacklevel=2,
    )

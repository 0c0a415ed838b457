"""What a pruner does once, before its first step: the weights that training starts from are known only then."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fingerprints import fingerprints
from ..host import Host
from ..problems import ForgottenStateWarning, StaleMasksWarning, warn
from ..runtime.optimizer_state import named_states
from ..views import on_any_rank
from ..weights import Weight, count_marks
from .base import Guard
from .ranks import check_ranks

MOSTLY = 0.5
"""A network with a larger share of zeros than this looks like a pruned one."""


class FirstStep(Guard):
    """The checks before the first step of a pruner without a loaded state.

    `notes_weights` is whether the method or its form takes an initial state from the weights, in `start()`. If the
    weights were changed since the pruner was attached, it takes that state again.
    """

    def __init__(self, pruner: Host, notes_weights: bool) -> None:
        self._weights = fingerprints(pruner.model.parameters()) if notes_weights else None
        self._done = False

    def before_step(self, pruner: Host) -> None:
        if self._done:
            return
        self._done = True
        pruner.statistics.started()
        self._renew(pruner)
        if any(not weight.dense for weight in pruner.weights):
            check_ranks(pruner)
        if pruner.masks_are_stale():
            _warn_of_stale_masks()
        if pruner.plan() and (zeros := _share_of_zeros(pruner.weights)) > MOSTLY:
            _warn_of_forgotten_state(type(pruner).__name__, zeros)

    def saving(self, pruner: Host) -> None:
        if not self._done:
            self._renew(pruner)

    def loaded(self, pruner: Host) -> None:
        self._done = True

    @torch.no_grad()
    def _renew(self, pruner: Host) -> None:
        """Take the initial state again if weights were changed, such as loaded, since the last time."""
        if self._weights is None:
            return
        before, self._weights = self._weights, fingerprints(pruner.model.parameters())
        if on_any_rank(before != self._weights, [weight.view for weight in pruner.weights]):
            pruner.start()


class AtOnce(Guard):
    """A copy of the weights, and of what the optimizer keeps for them, before a pruning at step 0.

    Someone who resumes may have loaded trained weights and the optimizer's state before attaching a pruner that prunes
    at step 0. The state that is loaded next must find them complete. The copies are freed after the first step.
    """

    def __init__(self, weights: Sequence[Weight], optimizer: torch.optim.Optimizer) -> None:
        self._weights = [(weight, weight.local, weight.local.detach().clone()) for weight in weights]
        self._states = [
            (weight, state, state.detach().clone())
            for weight in weights
            for _, state in named_states(optimizer, weight.parameter)
        ]

    def restore(self) -> None:
        """Restore everything."""
        for _, tensor, copy in (*self._weights, *self._states):
            tensor.copy_(copy)

    def restore_pruned(self) -> None:
        """Restore the tensors that hold what the pruning left of them; others were loaded since."""
        for weight, tensor, copy in (*self._weights, *self._states):
            if _is_rest(weight, tensor, copy):
                tensor.copy_(copy)
        self._drop()

    def changed(self) -> bool:
        """Whether a weight holds anything else than what the pruning left of it."""
        return any(not _is_rest(*one) for one in self._weights)

    def after_step(self, pruner: Host) -> None:
        self._drop()

    def _drop(self) -> None:
        self._weights.clear()
        self._states.clear()


def _is_rest(weight: Weight, tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor holds what is left of its copy under the mask."""
    return torch.equal(tensor, copy.masked_fill(~weight.mask, 0))


def _share_of_zeros(weights: Sequence[Weight]) -> float:
    """The share of kept weights that are exactly 0. A tensor of zeros alone is initialized so, not pruned."""
    nonzero = count_marks([(weight.local != 0) & weight.mask for weight in weights], weights)
    pairs = [(weight.kept, count) for weight, count in zip(weights, nonzero, strict=True) if count]
    return 1 - sum(count for _, count in pairs) / sum(kept for kept, _ in pairs) if pairs else 0.0


def _warn_of_forgotten_state(method: str, zeros: float) -> None:
    warn(
        f"{zeros:.1%} of the weights that {method} is about to train and prune are exactly 0, and no state was loaded. "
        "Is this network pruned already? To resume, call pruner.load_state_dict() with the saved state before the "
        "first step. To fine-tune it and keep its zeros, use flipout.KeepZeros instead. Otherwise the zeros are "
        "trained like all weights, and the network is pruned again from the start",
        ForgottenStateWarning,
    )


def _warn_of_stale_masks() -> None:
    warn(
        "the weights were changed after the pruner was attached. It had chosen its masks by then, so they fit the old "
        "weights. Load the weights before you create the pruner; to resume, also load the pruner's state",
        StaleMasksWarning,
    )

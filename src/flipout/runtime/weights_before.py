"""A copy of the weights before a pruning at step 0, until the first step is taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layers import Layer
from .optimizer_state import states_of


class WeightsBefore:
    """The weights of layers, and what the optimizer keeps for them, before they are pruned at once.

    Someone who resumes may have loaded trained weights and the optimizer's state before attaching a pruner that prunes
    at step 0. The state that is loaded next must find them complete.
    """

    def __init__(self, layers: Sequence[Layer], optimizer: torch.optim.Optimizer) -> None:
        self._weights = [(layer, layer.local, layer.local.detach().clone()) for layer in layers]
        self._states = [
            (layer, state, state.detach().clone()) for layer in layers for state in states_of(optimizer, layer.weight)
        ]

    def restore(self) -> None:
        """Restore everything."""
        for _, tensor, copy in (*self._weights, *self._states):
            tensor.copy_(copy)

    def restore_pruned(self) -> None:
        """Restore the tensors that hold what the pruning left of them; others were loaded since."""
        for layer, tensor, copy in (*self._weights, *self._states):
            if _is_rest(layer, tensor, copy):
                tensor.copy_(copy)
        self.drop()

    def changed(self) -> bool:
        """Whether a weight holds anything else than what the pruning left of it."""
        return any(not _is_rest(*one) for one in self._weights)

    def drop(self) -> None:
        """Free the copies."""
        self._weights.clear()
        self._states.clear()


def _is_rest(layer: Layer, tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor holds what is left of its copy under the mask."""
    return torch.equal(tensor, copy.masked_fill(~layer.mask, 0))

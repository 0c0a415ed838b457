"""A copy of the weights before a pruning at step 0, until the first step is taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..layers import Layer


class WeightsBefore:
    """The weights of layers before they are pruned at once.

    Someone who resumes may have loaded trained weights before attaching a pruner that prunes at step 0. The state that
    is loaded next must find these weights complete.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._copies = [(layer, layer.weight.detach().clone()) for layer in layers]

    def restore(self) -> None:
        """Restore every weight."""
        for layer, copy in self._copies:
            layer.weight.copy_(copy)

    def restore_pruned(self) -> None:
        """Restore the weights that hold what the pruning left of them; others were loaded since."""
        for layer, copy in self._copies:
            if torch.equal(layer.weight, copy.masked_fill(~layer.mask, 0)):
                layer.weight.copy_(copy)
        self.drop()

    def changed(self) -> bool:
        """Whether a weight holds anything else than what the pruning left of it."""
        return any(not torch.equal(layer.weight, copy.masked_fill(~layer.mask, 0)) for layer, copy in self._copies)

    def drop(self) -> None:
        """Free the copies."""
        self._copies.clear()

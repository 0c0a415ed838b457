"""What an optimizer keeps for a weight: momentum, moments, and anything else of the weight's shape."""

from __future__ import annotations

import torch
from torch import Tensor


def clear_state(optimizer: torch.optim.Optimizer, weight: Tensor, where: Tensor) -> None:
    """Zero the optimizer's state of some elements of a weight.

    Every tensor of the weight's shape counts: SGD's momentum, both moments of Adam, RMSprop's averages. A pruned
    weight leaves nothing behind, and one that grows back starts like a new one.
    """
    for value in optimizer.state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.ndim and value.shape == weight.shape:
            value.masked_fill_(where, 0)

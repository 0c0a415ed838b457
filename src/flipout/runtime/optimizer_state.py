"""What an optimizer keeps for a weight: momentum, moments, and anything else of the weight's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..numerics import masked
from ..shards.local_tensors import local_of

INITIAL = {"step_size": "lr", "sum": "initial_accumulator_value"}
"""State that does not start at 0, and the option of the parameter group that it starts at: Rprop's, Adagrad's."""


def states_of(optimizer: torch.optim.Optimizer, weight: Tensor) -> Iterator[Tensor]:
    """The floating-point tensors of the weight's shape in the state of an optimizer; of a sharded weight, the parts
    that this rank holds."""
    return (state for _, state in _named_states(optimizer, weight))


def clear_state(
    optimizer: torch.optim.Optimizer, weight: Tensor, keep: Tensor, clear: Callable[[Tensor], None] | None = None
) -> None:
    """Reset the optimizer's state of a weight where `keep`, a tensor of bytes, is 0.

    `clear` zeroes a tensor there, if there is a faster way.

    Every floating-point tensor of the weight's shape counts: SGD's momentum, both moments of Adam, RMSprop's averages.
    A pruned weight leaves nothing behind, and one that grows back starts like a new one.
    """
    for name, state in _named_states(optimizer, weight):
        if clear is None:
            state.copy_(masked(state, keep))
        else:
            clear(state)
        if name in INITIAL and (start := _group_of(optimizer, weight).get(INITIAL[name], 0)):
            state.masked_fill_(keep == 0, float(start))


def _named_states(optimizer: torch.optim.Optimizer, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    for name, state in optimizer.state.get(weight, {}).items():
        if isinstance(state, Tensor) and state.ndim and state.shape == weight.shape and state.is_floating_point():
            yield name, local_of(state)


def _group_of(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(one is weight for one in group["params"]))

"""What an optimizer keeps for a weight: momentum, moments, and anything else of the weight's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..numerics import zero_pruned
from ..views.dtensors import local_of
from ..weights import Weight

INITIAL = {"step_size": "lr", "sum": "initial_accumulator_value"}
"""State that does not start at 0, and the option of the parameter group that it starts at: Rprop's, Adagrad's."""


def clear_state(optimizer: torch.optim.Optimizer, weight: Weight, keep: Tensor) -> None:
    """Reset the optimizer's state of a weight where `keep`, a boolean tensor of its elements, is False.

    Every floating-point tensor of the weight's shape counts: SGD's momentum, both moments of Adam, RMSprop's averages.
    A pruned weight leaves nothing behind, and one that grows back starts like a new one.
    """
    for name, state in named_states(optimizer, weight.parameter):
        zero_pruned(state, keep.view(torch.uint8))
        if name in INITIAL and (start := group_of(optimizer, weight.parameter).get(INITIAL[name], 0)):
            state.masked_fill_(~keep, float(start))


def named_states(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a parameter's shape in the state of an optimizer; of a sharded one, the shards that
    this rank holds."""
    for name, state in optimizer.state.get(parameter, {}).items():
        if isinstance(state, Tensor) and state.ndim and state.shape == parameter.shape and state.is_floating_point():
            yield name, local_of(state)


def group_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Any]:
    """The parameter group that holds a parameter."""
    return next(group for group in optimizer.param_groups if any(one is parameter for one in group["params"]))

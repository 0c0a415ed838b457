"""Steps that train nothing: `torch.distributed.checkpoint` takes one to create the state of an optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shards.local_tensors import local_of
from ..shards.parts import part_of


def initializes_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step only creates the optimizer's state: every learning rate is 0, and so is every gradient.

    `get_state_dict` and `set_state_dict` of `torch.distributed.checkpoint` take such a step if the optimizer has no
    state yet, which for plain SGD is always. The gradients are read only if the learning rates are 0.
    """
    if not all(_is_zero(group["lr"]) for group in optimizer.param_groups if "lr" in group):
        return False
    if not any("lr" in group for group in optimizer.param_groups):
        return False
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    grads = [p.grad for p in trained if p.grad is not None]
    return bool(grads) and len(grads) == len(trained) and not any(_has_nonzero(grad) for grad in grads)


def _is_zero(rate: object) -> bool:
    if isinstance(rate, Tensor):
        return rate.device.type == "cpu" and not rate.any()  # the zero is on the CPU; reading others would wait
    return rate == 0


def _has_nonzero(grad: Tensor) -> bool:
    values = grad.coalesce().values() if grad.is_sparse else local_of(grad)
    part = part_of(grad, "a gradient")  # all ranks must come to the same answer
    return bool(values.any()) if part is None else bool(part.max(values.any().to(torch.uint8)))

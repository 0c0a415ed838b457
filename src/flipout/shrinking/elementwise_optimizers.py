"""Which optimizers treat every weight by itself, so that they go on in the same way with a part of a tensor."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict

import torch
from torch import Tensor, nn

ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
)
ROWS, COLUMNS, STEPS = 6, 5, 3


def is_elementwise_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the update of a weight depends on that weight, its gradient and its state alone.

    Torch's own are known. Any other is tried: a small matrix is trained as a whole, and cut into a smaller matrix and
    a vector.
    """
    if type(optimizer) in ELEMENTWISE:
        return True
    try:
        return _is_same_in_parts(optimizer)
    except Exception:  # an optimizer may need anything that the trial does not have
        return False


@torch.no_grad()
def _is_same_in_parts(optimizer: torch.optim.Optimizer) -> bool:
    parameter = optimizer.param_groups[0]["params"][0]
    generator = torch.Generator().manual_seed(0)
    shape = (STEPS + 1, ROWS, COLUMNS)
    start, *grads = torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype)
    whole = _trained(optimizer, [start], [[grad] for grad in grads])
    parts = _trained(optimizer, _cut(start), [_cut(grad) for grad in grads])
    close = [torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(_cut(whole[0]), parts, strict=True)]
    return all(close)


def _cut(matrix: Tensor) -> list[Tensor]:
    """A smaller matrix, and the rest as a vector, as in a network that is shrunk."""
    inside = torch.zeros_like(matrix, dtype=torch.bool)
    inside[:4, 1:] = True
    return [matrix[:4, 1:].clone(), matrix[~inside].clone()]


def _trained(optimizer: torch.optim.Optimizer, start: list[Tensor], grads: list[list[Tensor]]) -> list[Tensor]:
    """Train some tensors with the optimizer's settings. The optimizer itself is not touched."""
    trial = object.__new__(type(optimizer))
    vars(trial).update(vars(optimizer))  # (`copy.copy` leaves out what a class has added)
    parameters = [nn.Parameter(each.clone()) for each in start]
    group = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "param_names")}
    trial.param_groups = [copy.deepcopy(group) | {"params": parameters}]
    trial.state = defaultdict(dict)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(trial, hooks, OrderedDict())
    step = type(trial).step  # a learning-rate scheduler puts another `step` into the instance
    for grad in grads:
        for parameter, each in zip(parameters, grad, strict=True):
            parameter.grad = each.clone()
        step(trial)
    return [parameter.detach() for parameter in parameters]

"""What the tests of clipping share: the norm of what a network depends on, and a loop that clips."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.views.dtensors import local_of
from tests.helpers import batches, cross_entropy

METHODS = ("flipout", "magnitude", "rigl", "granet")
"""Second chances, permanent pruning, and two methods with a statistic of the gradients of pruned weights."""

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}
HUGE = 1e9
"""A limit that no norm reaches: clipping multiplies with 1."""


def kept_norm(pruner: flipout.Pruner) -> float:
    """The norm of the gradients of everything but the pruned weights, over all shards."""
    masks = {id(weight.parameter): weight.mask for weight in pruner.weights}
    total, shards = 0.0, False
    for parameter in pruner.model.parameters():
        if parameter.grad is not None:
            shards = shards or local_of(parameter.grad) is not parameter.grad
            grad = local_of(parameter.grad).double()
            if id(parameter) in masks:
                grad = torch.where(masks[id(parameter)], grad, 0)
            total += float(grad.square().sum())
    if shards:
        summed = torch.tensor(total)
        torch.distributed.all_reduce(summed)
        total = float(summed)
    return math.sqrt(total)


def whole(norm: Any) -> float:
    """A norm as a number, also that of sharded gradients."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-4 * abs(other)


def train_clipped(
    model: nn.Module,
    pruner: flipout.Pruner,
    max_norm: float | None,
    *,
    accumulate: int = 1,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[float]:
    """Train to the end of the schedule, and return the norms that clipping has computed. Each is compared."""
    norms: list[float] = []
    optimizer = pruner.optimizer
    for number, (x, y) in enumerate(batches(pruner.schedule.steps * accumulate, seed=seed), 1):
        loss: Tensor = cross_entropy(model(x.to(dtype)), y) / accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        if number % accumulate:
            continue
        if scaler is not None:
            scaler.unscale_(optimizer)
        if max_norm is not None:
            expected = kept_norm(pruner)
            norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
            assert close(norms[-1], expected), (norms[-1], expected)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return norms

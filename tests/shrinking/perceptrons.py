"""A small perceptron that loses most of its hidden channels, and a few fast steps of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import flipout

STEPS = 40
EXAMPLE = torch.zeros(4, 8)
Parts = tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)


def pruned(
    model: nn.Module | None = None,
    make: Callable[[nn.Module], torch.optim.Optimizer] = momentum,
    method: Callable[..., flipout.Pruner] = flipout.GlobalMagnitude,
    **options: Any,
) -> Parts:
    """A model, its optimizer and its pruner, which keeps at least 6 weights of each layer."""
    model = layers() if model is None else model
    optimizer = make(model)
    options = {"sparsity": 0.95, "steps": STEPS, "compile": False, "floor": 6, **options}
    return model, optimizer, method(model, optimizer, **options)


def numbers(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)


def steps(parts: Sequence[Any], first: int, last: int) -> None:
    """Train, without shrinking."""
    model, optimizer = parts[:2]
    for number in range(first, last):
        x, labels = numbers(number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in model.parameters()]

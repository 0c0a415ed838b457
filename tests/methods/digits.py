"""A short training on real data: scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout

STEPS = 300


@cache
def data() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def accuracy_of(method: str, after: Callable[[flipout.Pruner], None] | None = None, **options: Any) -> float:
    """Train a perceptron of 7,400 weights with a method on 1,400 digits; the accuracy on the other 397."""
    x, y = data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = flipout.METHODS[method](model, optimizer, steps=STEPS, **options)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        batch = torch.randint(1400, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if after is not None:
            after(pruner)
    assert pruner.finished
    with torch.no_grad():
        return float((model(x[1400:]).argmax(1) == y[1400:]).float().mean())

"""Small networks, trained with and without sparse kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.kernels.speed_table import SpeedTable


class ConvNet(nn.Module):
    """Convolutions with and without stride, a 1 x 1 one, norms, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 16, 3, stride=2, padding="valid")
        self.third = nn.Conv2d(16, 16, 1)
        self.line = nn.Conv1d(16, 8, 5, padding="same")
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.first(x)))
        x = torch.relu(self.third(torch.relu(self.second(x))))
        return self.head(torch.relu(self.line(x.flatten(2))).mean(2))  # type: ignore[no-any-return]


class EveryDensity(SpeedTable):
    """A table by which sparse kernels are always faster."""

    def __init__(self) -> None:
        super().__init__({"any": 1.0})

    def measure(self, seen: Any, *, all_gradients: bool) -> str:
        return "any"


def pruned(sparse: bool, *, method: Any = flipout.GlobalMagnitude, seed: int = 0, **options: Any) -> Any:
    """A network, its optimizer, its pruner and its sparse kernels, if asked for."""
    torch.manual_seed(seed)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = flipout.Geometric(0.8, 12, prunings=4, window=(0.1, 0.7))
    options = {"sparsity": 0.8, "steps": 12, "schedule": schedule, "compile": False, **options}
    pruner = method(model, optimizer, sparse_kernels=sparse, **options)
    return model, optimizer, pruner, on_every_density(pruner)


def on_every_density(pruner: flipout.Pruner) -> Any:
    """Let all layers be sparse, whatever their speed; return the kernels."""
    kernels: Any = pruner.sparse_kernels
    kernels.table = EveryDensity()
    return kernels


def batch(number: int, images: int = 6, size: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(images, 3, size, size, generator=generator)
    return x, torch.randint(4, (images,), generator=generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, **shape: int) -> float:
    x, y = batch(number, **shape)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())

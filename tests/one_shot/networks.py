"""Small networks and batches for one-shot pruning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(sizes: Sequence[int] = (12, 16, 16, 4), seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vectors(batches: int = 4, size: int = 32, features: int = 12, seed: int = 1) -> list[Tensor]:
    """Correlated inputs."""
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(features, features, generator=random)
    return [torch.randn(size, features, generator=random) @ mixed for _ in range(batches)]


class Residual(nn.Module):
    """Convolutions with batch norm, a residual sum, a grouped convolution, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.grouped, self.norm3 = nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.stem(x)).relu()
        x = (x + self.norm2(self.conv(x))).relu()
        x = self.norm3(self.grouped(x)).relu()
        out: Tensor = self.head(self.dropout(x.mean((2, 3))))
        return out


def images(batches: int = 3, size: int = 8, seed: int = 1) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, 9, 9, generator=random) * (1 + number) for number in range(batches)]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def nonzero(model: nn.Module) -> int:
    return sum(int(parameter.count_nonzero()) for parameter in model.parameters() if parameter.ndim > 1)

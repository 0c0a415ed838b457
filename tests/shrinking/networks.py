"""Small networks of every shape that shrinking knows, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import flipout


class Residual(nn.Module):
    """A stem, two blocks with shortcuts, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.inner = nn.ModuleList(nn.Conv2d(6, 8, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.outer = nn.ModuleList(nn.Conv2d(8, 6, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        for inner, norm, outer in zip(self.inner, self.norms, self.outer, strict=True):
            x = (x + outer(norm(inner(x)).relu())).relu()
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Concatenating(nn.Module):
    """Two branches that are concatenated, and a product with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 5, 1), nn.Conv2d(2, 4, 3, padding=1)
        self.norm, self.next = nn.BatchNorm2d(9), nn.Conv2d(9, 6, 3)
        self.gate, self.head = nn.Conv2d(9, 6, 3), nn.Linear(6 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.cat([self.left(x), self.right(x)], 1)).relu()
        x = self.next(x) * self.gate(x).sigmoid()
        return self.head(x.view(x.size(0), -1))  # type: ignore[no-any-return]


def plain() -> nn.Module:
    """Convolutions with norms, padding, biases, pooling and flattening."""
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 10, 3, padding=1, stride=2), nn.BatchNorm2d(10), nn.LeakyReLU(), nn.MaxPool2d(3, 1, 1)),
        *(nn.Conv2d(10, 6, 1, bias=False), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 9), nn.Tanh()),
        nn.Linear(9, 4),
    )


def grouped() -> nn.Module:
    """A depthwise convolution, one with groups, and a transposed one."""
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 1, groups=2), nn.GELU(), nn.Conv2d(12, 6, 1), nn.ConvTranspose2d(6, 5, 2, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(5 * 12 * 12, 4)),
    )


def perceptron() -> nn.Module:
    """Linear layers, norms for vectors."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(72, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU()),
        nn.Linear(10, 4),
    )


NETWORKS = {"plain": plain, "residual": Residual, "concat": Concatenating, "grouped": grouped, "mlp": perceptron}
SHAPE = (2, 6, 6)


def build(name: str, seed: int = 0) -> nn.Module:
    """A network by its name, with weights of a seed."""
    torch.manual_seed(seed)
    return NETWORKS[name]().double()


def batch(seed: int, size: int = 6) -> tuple[Tensor, Tensor]:
    """A batch of random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, *SHAPE, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, 4, (size,), generator=generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One training step, in training mode."""
    images, labels = batch(number)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def parts_in_network(pruner: flipout.Pruner) -> dict[str, Tensor]:
    """For each weight, marks in its original shape of the elements that the network still has."""
    return {weight.name: weight.view.gather(torch.ones_like(weight.mask)) for weight in pruner.weights}


def set_aside(pruner: flipout.Pruner) -> int:
    """How many weights are kept, but are not in the network."""
    return pruner.nonzero - sum(int(mask.sum()) for mask in pruner.masks.values())

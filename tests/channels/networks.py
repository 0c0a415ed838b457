"""Networks with random statistics, biases and masks, and random architectures."""

from __future__ import annotations

import random
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd


def randomize(model: nn.Module, sparsity: float, seed: int = 0) -> nn.Module:
    """Set norms, biases and weights to random values, with the given share of zeros in the weights of every layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
                if module.affine:
                    module.weight.uniform_(-1.5, 1.5, generator=generator)
                    module.bias.normal_(0, 0.5, generator=generator)
            if isinstance(module, nn.Linear | _ConvNd):
                if module.bias is not None:
                    module.bias.normal_(0, 0.5, generator=generator)
                keep = torch.rand(module.weight.shape, generator=generator, dtype=torch.float64) >= sparsity
                module.weight.normal_(0, 1, generator=generator).mul_(keep)
    return model


ACTIVATIONS = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Softplus, nn.Identity, nn.Dropout, nn.Hardswish)


class Residual(nn.Module):
    """Adds its input to its output, directly or through a projection."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.branch, self.shortcut, self.in_place = branch, shortcut, in_place

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        if self.in_place:
            out += self.shortcut(x)
            return out
        added: Tensor = out + self.shortcut(x)
        return added


class Grown(nn.Module):
    """Concatenates its input and its output."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


class Gated(nn.Module):
    """Multiplies channels with gates that are computed from their means."""

    def __init__(self, channels: int, kind: int) -> None:
        super().__init__()
        self.gate, self.kind = nn.Linear(channels, channels), kind

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x.mean((2, 3))).sigmoid()
        if self.kind == 0:
            return x * gate.view(x.size(0), -1, 1, 1)
        if self.kind == 1:
            return x * gate[:, :, None, None]
        return gate.unsqueeze(-1).unsqueeze(-1) * x


class Shifted(nn.Module):
    """Adds a parameter, the same for every example, and slices some channels for another layer."""

    def __init__(self, channels: int, part: int) -> None:
        super().__init__()
        self.shift, self.part = nn.Parameter(torch.randn(1, channels, 10, 10)), part
        self.other = nn.Conv2d(part, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.shift
        other: Tensor = self.other(x[:, : self.part])
        return y - other


class View(nn.Module):
    """The usual ways to write a flatten."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == 0:
            return x.view(x.size(0), -1)
        if self.kind == 1:
            return x.reshape(x.shape[0], -1)
        return torch.flatten(x, 1)


UNDERSTOOD = ("convolution", "convolution", "residual", "projected", "grown", "gated", "pool")
BLOCKS = (*UNDERSTOOD, "unknown", "shifted")


class Architect:
    """Draws convolutional networks for images of 3 x 10 x 10."""

    def __init__(
        self, seed: int, activations: tuple[type[nn.Module], ...] = ACTIVATIONS, blocks: tuple[str, ...] = BLOCKS
    ) -> None:
        self.random, self.activations, self.blocks = random.Random(seed), activations, blocks

    def network(self) -> nn.Module:
        torch.manual_seed(self.random.randrange(1 << 30))
        channels, layers = 3, []
        for _ in range(self.random.randint(1, 5)):
            block, channels = self.block(channels)
            layers.append(block)
        if self.random.random() < 0.5:
            layers += [nn.AdaptiveAvgPool2d(1), View(self.random.randrange(3))]
            features = channels
        else:
            layers += [nn.AdaptiveMaxPool2d(2), nn.Flatten()]
            features = 4 * channels
        for _ in range(self.random.randint(0, 2)):
            width = self.random.randint(1, 12)
            layers += [nn.Linear(features, width, bias=self.flip()), self.activation()]
            if self.flip():
                layers.append(nn.BatchNorm1d(width))
            features = width
        return nn.Sequential(*layers, nn.Linear(features, 4))

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def activation(self) -> nn.Module:
        kind = self.random.choice(self.activations)
        return kind(inplace=True) if kind is nn.ReLU and self.flip() else kind()

    def block(self, channels: int) -> tuple[nn.Module, int]:
        kind = self.random.choice(self.blocks)
        if kind == "residual":
            first, inner = self.convolution(channels, 8)
            branch: nn.Module = nn.Sequential(first, self.same(inner, channels))
            return nn.Sequential(Residual(branch, nn.Identity(), self.flip()), self.activation()), channels
        if kind == "projected":
            branch = self.same(channels, 8)
            return nn.Sequential(Residual(branch, nn.Conv2d(channels, 8, 1, bias=self.flip()), self.flip())), 8
        if kind == "grown":
            return nn.Sequential(Grown(self.same(channels, 5)), nn.BatchNorm2d(channels + 5), self.activation()), (
                channels + 5
            )
        if kind == "unknown":
            return self.random.choice((nn.PReLU(channels, 0.3), nn.GroupNorm(1, channels))), channels
        if kind == "shifted":
            return Shifted(channels, self.random.randint(1, channels)), channels
        if kind == "gated":
            return Gated(channels, self.random.randrange(3)), channels
        if kind == "pool":
            return self.pool(), channels
        return self.convolution(channels, self.random.randint(1, 4) * 4)

    def same(self, before: int, after: int) -> nn.Module:
        """A convolution that keeps the size of the image."""
        kernel, dilation = self.random.choice((1, 3, 5)), self.random.choice((1, 1, 2))
        mode: Literal["zeros", "circular"] = self.random.choice(("zeros", "zeros", "zeros", "circular"))
        padding = dilation * (kernel - 1) // 2
        layer = nn.Conv2d(
            before, after, kernel, padding=padding, dilation=dilation, bias=self.flip(), padding_mode=mode
        )
        return nn.Sequential(layer, nn.BatchNorm2d(after)) if self.flip() else layer

    def convolution(self, before: int, after: int) -> tuple[nn.Module, int]:
        """Layers that keep the size of the image, some in groups, some transposed."""
        kind = self.random.random()
        if kind < 0.2:
            layer: nn.Module = nn.Conv2d(before, 2 * before, 3, padding=1, groups=before, bias=self.flip())
            after = 2 * before
        elif kind < 0.35 and before % 2 == 0:
            layer = nn.Conv2d(before, after, 3, padding=1, groups=2, bias=self.flip())
        elif kind < 0.45:
            layer = nn.ConvTranspose2d(before, after, 3, padding=1, bias=self.flip())
        else:
            layer = self.same(before, after)
        layers = [layer]
        if self.flip():
            layers.append(nn.BatchNorm2d(after, affine=self.flip()))
        return nn.Sequential(*layers, self.activation()), after

    def pool(self) -> nn.Module:
        return self.random.choice(
            (
                nn.MaxPool2d(3, 1, padding=1),
                nn.AvgPool2d(3, 1, padding=1),
                nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
                nn.Upsample(scale_factor=1, mode="nearest"),
            )
        )

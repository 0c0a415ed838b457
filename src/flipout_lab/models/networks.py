"""The shape of an image, and the scaling of the number of channels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


def scaled(channels: int, width: float) -> int:
    """The number of channels times the width factor, rounded, at least one."""
    return max(1, round(channels * width))


def perceptron(shape: Shape, hidden: list[int], classes: int) -> nn.Sequential:
    sizes = [shape[0] * shape[1] * shape[2], *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def mlp(shape: Shape, classes: int, width: float) -> nn.Module:
    return perceptron(shape, [scaled(256, width), scaled(128, width)], classes)


def lenet_300_100(shape: Shape, classes: int, width: float) -> nn.Module:
    return perceptron(shape, [scaled(300, width), scaled(100, width)], classes)


def lenet_5(shape: Shape, classes: int, width: float) -> nn.Module:
    first, second, hidden = (scaled(n, width) for n in (20, 50, 500))
    side = [((length - 4) // 2 - 4) // 2 for length in shape[1:]]
    return nn.Sequential(
        nn.Conv2d(shape[0], first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * max(1, side[0]) * max(1, side[1]), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def conv_6(shape: Shape, classes: int, width: float) -> nn.Module:
    channels = [scaled(n, width) for n in (64, 64, 128, 128, 256, 256)]
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise([shape[0], *channels])):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if i % 2:
            layers.append(nn.MaxPool2d(2))
    hidden = scaled(256, width)
    flat = channels[-1] * (shape[1] // 8) * (shape[2] // 8)
    head = [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(hidden, classes))


STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def vgg19(shape: Shape, classes: int, width: float) -> nn.Module:
    layers: list[nn.Module] = []
    before = shape[0]
    for channels, depth in STAGES:
        after = scaled(channels, width)
        for _ in range(depth):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            before = after
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm1(self.conv1(x)).relu()
        out = self.norm2(self.conv2(out)) + self.shortcut(x)
        return out.relu()  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Four stages with 64, 128, 256 and 512 channels times the width. The last three halve the sides of the image."""

    def __init__(self, shape: Shape, classes: int, width: float, blocks_per_stage: int, stem_stride: int) -> None:
        super().__init__()
        channels = [scaled(n, width) for n in (64, 128, 256, 512)]
        self.stem = nn.Conv2d(shape[0], channels[0], 3, stem_stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        blocks: list[nn.Module] = []
        before = channels[0]
        for stage, after in enumerate(channels):
            blocks.append(ResidualBlock(before, after, 2 if stage else 1))
            blocks += [ResidualBlock(after, after, 1) for _ in range(blocks_per_stage - 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.stem(x)).relu())
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]


def resnet18(shape: Shape, classes: int, width: float) -> nn.Module:
    return ResNet(shape, classes, width, blocks_per_stage=2, stem_stride=1)


def resnet18_strided(shape: Shape, classes: int, width: float) -> nn.Module:
    return ResNet(shape, classes, width, blocks_per_stage=2, stem_stride=2)


def resnet10(shape: Shape, classes: int, width: float) -> nn.Module:
    return ResNet(shape, classes, width, blocks_per_stage=1, stem_stride=2)


DEPTHS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Append `growth` channels: norm, 1 x 1 convolution to `4 * growth` channels, norm, 3 x 3 convolution."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(self.norm1(x).relu())
        new = self.conv2(self.norm2(new).relu())
        return torch.cat([x, new], 1)


def densenet121(shape: Shape, classes: int, width: float) -> nn.Module:
    growth, channels = scaled(32, width), scaled(64, width)
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for stage, depth in enumerate(DEPTHS):
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if stage < len(DEPTHS) - 1:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

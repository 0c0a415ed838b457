"""DenseNet121: every layer of a block reads the outputs of all earlier layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .network_sizes import Shape, scaled

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

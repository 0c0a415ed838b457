"""VGG19 with batch norm for CIFAR-10: sixteen convolutions and one dense layer."""

from __future__ import annotations

from torch import nn

from .network_sizes import Shape, scaled

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

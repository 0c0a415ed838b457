"""Small convolutional networks: LeNet-5 and Conv-6."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from .network_sizes import Shape, scaled


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

"""Small networks: multi-layer perceptrons, LeNet-5 and Conv-6."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

Shape = tuple[int, int, int]


def scaled(channels: int, width: float) -> int:
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

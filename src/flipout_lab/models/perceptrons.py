"""Multi-layer perceptrons: the MLP for small images, and LeNet-300-100."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from .network_sizes import Shape, scaled


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

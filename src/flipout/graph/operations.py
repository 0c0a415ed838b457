"""The operations that are known, by what they do to channels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Target = Callable[..., Any] | str
"""What a node calls: a function, or the name of a method."""

# With the number of axes that come after the channels.
CONVOLUTIONS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
TRANSPOSED: dict[type[nn.Module], int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
AVERAGES: dict[type[nn.Module], int] = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
WINDOWS: dict[type[nn.Module], int] = {
    **{nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3},
    **{nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3},
    **{nn.AdaptiveMaxPool1d: 1, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveMaxPool3d: 3},
}
FUNCTIONAL_AVERAGES: dict[Target, int] = {
    functional.avg_pool1d: 1,
    functional.avg_pool2d: 2,
    functional.avg_pool3d: 3,
}
FUNCTIONAL_WINDOWS: dict[Target, int] = {
    **{functional.max_pool1d: 1, functional.max_pool2d: 2, functional.max_pool3d: 3},
    functional.adaptive_avg_pool1d: 1,
    functional.adaptive_avg_pool2d: 2,
    functional.adaptive_avg_pool3d: 3,
}
AVERAGE_ARGUMENTS = (
    *("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
)

NORMS: set[type[nn.Module]] = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
SAME: set[type[nn.Module]] = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
}
ACTIVATIONS: set[type[nn.Module]] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Tanhshrink, nn.Hardshrink),
    *(nn.Softshrink, nn.Threshold),
}
FUNCTIONAL_ACTIVATIONS: set[Target] = {
    *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.neg, torch.sqrt, torch.clamp, torch.square),
    *(functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.selu, functional.celu),
    *(functional.gelu, functional.silu, functional.mish, functional.softplus, functional.softsign, functional.sigmoid),
    *(functional.logsigmoid, functional.hardsigmoid, functional.hardswish, functional.hardtanh, functional.tanh),
    *(operator.neg, "relu", "sigmoid", "tanh", "abs", "exp", "neg", "sqrt", "clamp", "square"),
    *("contiguous", "clone", "detach"),
}
ADDITIONS: set[Target] = {operator.add, torch.add, "add"}
PRODUCTS: set[Target] = {operator.mul, torch.mul, "mul"}
ARITHMETIC: set[Target] = {
    *(*ADDITIONS, *PRODUCTS, operator.sub, torch.sub, "sub", operator.truediv, torch.div, "div"),
    *(operator.pow, torch.pow, "pow"),
}
FLATTENS: set[Target] = {torch.flatten, torch.reshape, "flatten", "view", "reshape"}
UNSQUEEZES: set[Target] = {operator.getitem, torch.reshape, torch.unsqueeze, "view", "reshape", "unsqueeze"}
CONCATENATIONS: set[Target] = {torch.cat, torch.concat}
MEANS: set[Target] = {torch.mean, "mean"}

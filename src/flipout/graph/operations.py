"""The table of operations: for every module, function and method that compaction knows, the recognizer of its rule.

A recognizer returns the rule of a call, or None if the rule does not apply to this call. To teach compaction a new
operation, add it to `MODULES` or `FUNCTIONS`; CONTRIBUTING.md shows how.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .channels import INSERTED_MODULES
from .copies import has_hooks
from .rules import channelwise, reshaping
from .rules.base import Call, Rule
from .rules.combinations import recognize_arithmetic, recognize_concatenation
from .rules.layers import recognize_convolution, recognize_linear

Recognizer = Callable[[Call], Rule | None]
Target = Callable[..., Any] | str
"""What a node calls: a function, or the name of a method."""

# Operations that are listed with a number have that many axes after the channels.
CONVOLUTIONS: dict[type[nn.Module], int] = {
    **{nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3},
    **{nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3},
}
AVERAGE_POOLINGS: dict[type[nn.Module], int] = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
OTHER_POOLINGS: dict[type[nn.Module], int] = {
    **{nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3},
    **{nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3},
    **{nn.AdaptiveMaxPool1d: 1, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveMaxPool3d: 3},
}
BATCH_NORMS: set[type[nn.Module]] = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
IDENTITIES: set[type[nn.Module]] = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
}
ACTIVATIONS: set[type[nn.Module]] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Tanhshrink, nn.Hardshrink),
    *(nn.Softshrink, nn.Threshold),
}

MODULES: dict[type[nn.Module], Recognizer] = {
    nn.Linear: recognize_linear,
    **{kind: partial(recognize_convolution, spatial=n) for kind, n in CONVOLUTIONS.items()},
    **dict.fromkeys(BATCH_NORMS, channelwise.recognize_batch_norm),
    **dict.fromkeys(IDENTITIES, channelwise.recognize_identity),
    **dict.fromkeys(ACTIVATIONS, channelwise.recognize_activation),
    **{k: partial(channelwise.recognize_pooling, spatial=n, averages=True) for k, n in AVERAGE_POOLINGS.items()},
    **{k: partial(channelwise.recognize_pooling, spatial=n) for k, n in OTHER_POOLINGS.items()},
    nn.Upsample: channelwise.recognize_pooling,
    nn.Flatten: reshaping.recognize_flatten,
}
"""Modules by their exact class; a subclass may do something else."""

AVERAGE_POOLING_FUNCTIONS: dict[Target, int] = {
    **{functional.avg_pool1d: 1, functional.avg_pool2d: 2, functional.avg_pool3d: 3}
}
OTHER_POOLING_FUNCTIONS: dict[Target, int] = {
    **{functional.max_pool1d: 1, functional.max_pool2d: 2, functional.max_pool3d: 3},
    **{functional.adaptive_avg_pool1d: 1, functional.adaptive_avg_pool2d: 2, functional.adaptive_avg_pool3d: 3},
}
ACTIVATION_FUNCTIONS: set[Target] = {
    *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.neg, torch.sqrt, torch.clamp, torch.square),
    *(functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.selu, functional.celu),
    *(functional.gelu, functional.silu, functional.mish, functional.softplus, functional.softsign, functional.sigmoid),
    *(functional.logsigmoid, functional.hardsigmoid, functional.hardswish, functional.hardtanh, functional.tanh),
    *(operator.neg, "relu", "sigmoid", "tanh", "abs", "exp", "neg", "sqrt", "clamp", "square"),
    *("contiguous", "clone", "detach"),
}
ADDITIONS: set[Target] = {operator.add, torch.add, "add"}
PRODUCTS: set[Target] = {operator.mul, torch.mul, "mul"}
OTHER_ARITHMETIC: set[Target] = {
    *(operator.sub, torch.sub, "sub", operator.truediv, torch.div, "div", operator.pow, torch.pow, "pow"),
}
RESHAPES: set[Target] = {torch.flatten, torch.reshape, torch.unsqueeze, "flatten", "view", "reshape", "unsqueeze"}
CONCATENATIONS: set[Target] = {torch.cat, torch.concat}
MEANS: set[Target] = {torch.mean, "mean"}
SIZE_QUERIES: set[Target] = {getattr, "size"}
"""The only operations in `FUNCTIONS` that do not return a tensor."""

FUNCTIONS: dict[Target, Recognizer] = {
    **dict.fromkeys(ACTIVATION_FUNCTIONS, channelwise.recognize_activation),
    **dict.fromkeys(ADDITIONS, partial(recognize_arithmetic, kind="sum")),
    **dict.fromkeys(PRODUCTS, partial(recognize_arithmetic, kind="product")),
    **dict.fromkeys(OTHER_ARITHMETIC, partial(recognize_arithmetic, kind="other")),
    **dict.fromkeys(CONCATENATIONS, recognize_concatenation),
    **dict.fromkeys(MEANS, channelwise.recognize_mean_function),
    **{
        kind: partial(channelwise.recognize_pooling, spatial=n, averages=True)
        for kind, n in AVERAGE_POOLING_FUNCTIONS.items()
    },
    **{kind: partial(channelwise.recognize_pooling, spatial=n) for kind, n in OTHER_POOLING_FUNCTIONS.items()},
    functional.dropout: channelwise.recognize_dropout_function,
    **dict.fromkeys(RESHAPES, reshaping.recognize_reshape),
    operator.getitem: reshaping.recognize_indexing,
    **dict.fromkeys(SIZE_QUERIES, reshaping.recognize_size_query),
}
"""Functions, and methods by their names."""

# What follows is not about channels but about memory: the results of these never share memory with their inputs, so
# that a change in place of one does not change the other. An operation that is not listed is assumed to share it.
MODULES_WITH_NEW_MEMORY: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.modules.batchnorm._BatchNorm,
    *(nn.LayerNorm, nn.GroupNorm, nn.PReLU, nn.Softmax),
    *(*ACTIVATIONS, *OTHER_POOLINGS, *AVERAGE_POOLINGS),
)
FUNCTIONS_WITH_NEW_MEMORY: set[Any] = {
    *(*ADDITIONS, *PRODUCTS, *OTHER_ARITHMETIC, *CONCATENATIONS, *MEANS, *ACTIVATION_FUNCTIONS),
    *(*AVERAGE_POOLING_FUNCTIONS, *OTHER_POOLING_FUNCTIONS),
    *(operator.matmul, torch.matmul, "matmul", functional.linear, functional.softmax, "softmax"),
} - {"contiguous", "detach"}


def recognize(call: Call, shared: set[str]) -> Rule | None:
    """The rule of a call; None if the operation is opaque.

    Args:
        call: the call.
        shared: the names of modules that are called more than once or share their weights.
    """
    node = call.node
    if not call.sources or call.source not in call.shapes:
        return None
    if call.module is not None:
        plain_call = len(node.args) == 1 and not node.kwargs and node in call.shapes
        if not plain_call or str(node.target) in shared or has_hooks(call.module):
            return None
        recognizer = MODULES.get(type(call.module))
    elif node.op in ("call_function", "call_method") and (node in call.shapes or node.target in SIZE_QUERIES):
        recognizer = FUNCTIONS.get(node.target)
    else:
        return None
    return None if recognizer is None else recognizer(call)


def explain_opaque(call: Call, shared: set[str]) -> str | None:
    """A note about a call that is not recognized; None if that costs nothing."""
    node, module = call.node, call.module
    reads_channels = any(call.channels[source].axis is not None for source in call.sources)
    is_layer = isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
    if node.op == "output" or isinstance(module, INSERTED_MODULES) or not (is_layer or reads_channels):
        return None
    name, kind, reason = node.name, getattr(node.target, "__name__", str(node.target)), "may mix channels"
    if module is not None:
        name, kind = str(node.target), type(module).__name__
        if name in shared:
            reason = "is called more than once or shares its weights"
        elif has_hooks(module):
            reason = "has hooks"
    return f"{name} ({kind}) {reason}: it is left unchanged, and all channels of its input are kept"

"""Rules of activations, dropout, pooling and batch norm: operations that treat each channel separately."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..channels import Channels
from .base import Call, ChannelwiseRule, Rule

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder

AVERAGE_POOLING_ARGUMENTS = (
    *("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
)


class ActivationRule(ChannelwiseRule):
    """A function of each element. A constant is passed through the function itself."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None, function: Callable[[Tensor], Any]) -> None:
        super().__init__(node, source, axis)
        self.function = function

    def apply(self, constants: Tensor) -> Tensor:
        return torch.where(constants.isnan(), torch.nan, self.function(constants))


def recognize_identity(call: Call) -> Rule | None:
    return ActivationRule(call.node, call.source, call.axis, lambda x: x)


def recognize_activation(call: Call) -> Rule | None:
    """Recognize a module, or a function of one tensor and any number of plain arguments."""
    arguments = (*call.node.args, *call.node.kwargs.values())
    if len(call.sources) != 1 or not all(isinstance(each, fx.Node | float | int | str | None) for each in arguments):
        return None
    return ActivationRule(call.node, call.source, call.axis, call.module or (lambda x: _apply_call(call.node, x)))


def recognize_dropout_function(call: Call) -> Rule | None:
    """Recognize dropout that is switched off."""
    if len(call.sources) != 1 or call.argument("training", 2, True) is not False:
        return None
    return recognize_identity(call)


def _apply_call(node: fx.Node, x: Tensor) -> Any:
    """Run a call with another tensor in place of its source."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: x)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


class PoolingRule(ChannelwiseRule):
    """Pooling, upsampling and means over positions.

    Args:
        counts_padding: whether zeros of the padding are averaged in. Then only the constant zero stays constant.
    """

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None, *, counts_padding: bool) -> None:
        super().__init__(node, source, axis)
        self.counts_padding = counts_padding

    def apply(self, constants: Tensor) -> Tensor:
        return torch.where(constants == 0, constants, torch.nan) if self.counts_padding else constants


def recognize_pooling(call: Call, *, spatial: int | None = None, averages: bool = False) -> Rule | None:
    """Recognize a module or a function that pools; `spatial` is the number of axes after the channels, if it is fixed.

    `averages` is for average pooling, which may count zeros of the padding.
    """
    if spatial is not None and call.dimensions - 2 != spatial:
        return None
    if call.axis not in (1, None) or len(call.sources) != 1 or not call.starts_with_source:
        return None
    positional = dict(zip(AVERAGE_POOLING_ARGUMENTS, call.node.args, strict=False))
    options = vars(call.module) if call.module is not None else {**positional, **call.node.kwargs}
    if options.get("return_indices"):
        return None
    return PoolingRule(call.node, call.source, call.axis, counts_padding=averages and _counts_padding(options))


def recognize_mean_function(call: Call) -> Rule | None:
    """Recognize a mean over positions, which keeps examples and channels apart."""
    over = call.argument("dim", 1)
    over = [over] if isinstance(over, int) else over
    if not isinstance(over, list | tuple) or "dtype" in call.node.kwargs:
        return None
    if not all(isinstance(axis, int) and axis % call.dimensions > 1 for axis in over):
        return None
    return recognize_pooling(call)


def _counts_padding(options: Mapping[str, Any]) -> bool:
    """Whether average pooling includes zeros of the padding, or divides by another number than it sums up."""
    padding = options.get("padding", 0)
    is_padded = any(padding) if isinstance(padding, list | tuple) else padding != 0
    return bool(is_padded and options.get("count_include_pad", True)) or options.get("divisor_override") is not None


class BatchNormRule(ChannelwiseRule):
    """A batch norm with running statistics: a factor and a shift per channel."""

    def __init__(self, node: fx.Node, source: fx.Node, module: _BatchNorm) -> None:
        super().__init__(node, source, 1)
        self.module = module

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        module = self.module
        assert module.running_mean is not None
        assert module.running_var is not None
        factor = (module.running_var.double().cpu() + module.eps).rsqrt()
        factor = factor if module.weight is None else factor * module.weight.detach().double().cpu()
        constants = (channels.constants - module.running_mean.double().cpu()) * factor
        constants = torch.where(factor == 0, 0.0, constants)
        constants = constants if module.bias is None else constants + module.bias.detach().double().cpu()
        return Channels.known(1, constants, channels.input_dependent)

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        source = build.select(self, 0, kept)
        if kept.all():
            return build.copy(self.node, {self.sources[0]: source})
        module = copy.copy(self.module)
        module._parameters, module._buffers = dict(module._parameters), dict(module._buffers)
        module.num_features = int(kept.sum())
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.ndim:
                values = tensor.detach()[kept.to(tensor.device)]
                is_parameter = name in module._parameters
                setattr(module, name, nn.Parameter(values, tensor.requires_grad) if is_parameter else values)
        return build.replace(self.node, source, module)


def recognize_batch_norm(call: Call) -> Rule | None:
    """Recognize a batch norm that has running statistics."""
    assert isinstance(call.module, _BatchNorm)
    return None if call.module.running_mean is None else BatchNormRule(call.node, call.source, call.module)

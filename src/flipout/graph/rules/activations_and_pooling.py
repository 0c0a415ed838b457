"""Rules of activations, dropout and pooling: operations that treat each channel separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..calls import Call
from .base_rules import ChannelwiseRule, Rule

AVERAGE_POOLING_ARGUMENTS = (
    *("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
)


class ActivationRule(ChannelwiseRule):
    """A function of each element. A constant is passed through the function itself."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int | None, function: Callable[[Tensor], Any]) -> None:
        super().__init__(node, source, axis)
        self.function = function

    def apply(self, constants: Tensor) -> Tensor:
        result = self.function(constants)
        return torch.where(constants.isnan(), torch.nan, result)


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


def recognize_identity(call: Call) -> Rule | None:
    return ActivationRule(call.node, call.source, call.axis, lambda x: x)


def recognize_activation(call: Call) -> Rule | None:
    assert call.module is not None
    return ActivationRule(call.node, call.source, call.axis, call.module)


def recognize_activation_function(call: Call) -> Rule | None:
    """Recognize a function of one tensor and any number of plain arguments."""
    arguments = (*call.node.args, *call.node.kwargs.values())
    if len(call.sources) != 1 or not all(isinstance(each, fx.Node | float | int | str | None) for each in arguments):
        return None
    return ActivationRule(call.node, call.source, call.axis, lambda x: _apply_call(call.node, x))


def recognize_dropout_function(call: Call) -> Rule | None:
    """Recognize dropout that is switched off."""
    if len(call.sources) != 1 or call.argument("training", 2, True) is not False:
        return None
    return recognize_identity(call)


def recognize_pooling(call: Call, *, spatial: int) -> Rule | None:
    return _pooling(call, counts_padding=False) if call.dimensions - 2 == spatial else None


def recognize_average_pooling(call: Call, *, spatial: int) -> Rule | None:
    if call.dimensions - 2 != spatial:
        return None
    return _pooling(call, counts_padding=_counts_padding(vars(call.module)))


def recognize_upsampling(call: Call) -> Rule | None:
    return _pooling(call, counts_padding=False)


def recognize_pooling_function(call: Call, *, spatial: int) -> Rule | None:
    if call.dimensions - 2 != spatial or call.node.kwargs.get("return_indices"):
        return None
    return _pooling_function(call, counts_padding=False)


def recognize_average_pooling_function(call: Call, *, spatial: int) -> Rule | None:
    if call.dimensions - 2 != spatial:
        return None
    arguments = {**dict(zip(AVERAGE_POOLING_ARGUMENTS, call.node.args, strict=False)), **call.node.kwargs}
    return _pooling_function(call, counts_padding=_counts_padding(arguments))


def recognize_mean_function(call: Call) -> Rule | None:
    """Recognize a mean over positions, which keeps examples and channels apart."""
    over = call.argument("dim", 1)
    over = [over] if isinstance(over, int) else over
    if not isinstance(over, list | tuple) or "dtype" in call.node.kwargs:
        return None
    if not all(isinstance(axis, int) and axis % call.dimensions > 1 for axis in over):
        return None
    return _pooling_function(call, counts_padding=False)


def _pooling(call: Call, *, counts_padding: bool) -> Rule | None:
    if call.axis not in (1, None) or getattr(call.module, "return_indices", False):
        return None
    return PoolingRule(call.node, call.source, call.axis, counts_padding=counts_padding)


def _pooling_function(call: Call, *, counts_padding: bool) -> Rule | None:
    return _pooling(call, counts_padding=counts_padding) if len(call.sources) == 1 and call.source_comes_first else None


def _counts_padding(options: Mapping[str, Any]) -> bool:
    """Whether average pooling includes zeros of the padding, or divides by another number than it sums up."""
    padding = options.get("padding", 0)
    is_padded = any(padding) if isinstance(padding, list | tuple) else padding != 0
    return bool(is_padded and options.get("count_include_pad", True)) or options.get("divisor_override") is not None


def _apply_call(node: fx.Node, x: Tensor) -> Any:
    """Run a call with another tensor in place of its source."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: x)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)

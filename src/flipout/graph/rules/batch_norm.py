"""The rule of batch norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..calls import Call
from ..channels import Channels, known_channels
from .base_rules import ChannelwiseRule, Rule

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder


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
        return known_channels(1, constants, channels.input_dependent)

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

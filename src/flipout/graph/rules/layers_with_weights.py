"""Layers with weights: Linear, convolutions, batch norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..channels import Channels, Pointwise, Rule, broadcast, known
from . import constant_inputs
from .channel_modules import Shift

if TYPE_CHECKING:
    from ..rebuild import Builder

Weighted = nn.Linear | _ConvNd


def as_matrix(module: Weighted) -> Tensor:
    """Its weights as (outputs, inputs of a group, taps), on the CPU."""
    weight = module.weight.detach().cpu()
    if isinstance(module, _ConvTransposeNd):  # stored inputs first
        weight = weight.transpose(0, 1)
    return weight.reshape(*weight.shape[:2], -1)


def is_bordered(module: Weighted) -> bool:
    """Whether some position sees fewer taps than others."""
    if isinstance(module, nn.Linear):
        return False
    if isinstance(module, _ConvTransposeNd):
        return True
    if module.padding_mode != "zeros" or module.padding == "valid":
        return False
    if module.padding == "same":
        return any(size > 1 for size in module.kernel_size)
    return any(module.padding)


class Layer(Rule):
    """A Linear or convolution."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int, module: Weighted) -> None:
        super().__init__(node, [source], [axis])
        self.axis, self.module = axis, module
        self.weights, self.bordered = as_matrix(module), is_bordered(module)
        self.bias = None if module.bias is None else module.bias.detach().cpu()
        self.groups = 1 if isinstance(module, nn.Linear) else module.groups
        self.connected = constant_inputs.alive(self.weights, self.groups)

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        constants = constant_inputs.constant_outputs(
            self.weights, self.bias, channels.constants, self.groups, self.bordered
        )
        return known(self.axis, constants, constant_inputs.reached(self.connected, channels.carries))

    def matters(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        return [constant_inputs.read(self.connected, wanted & output.varies) & inputs[0].varies]


class Dense(Layer):
    """A layer all of whose outputs may read all inputs: rows and columns go one by one, constants are folded."""

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        (channels,) = inputs
        reads = constant_inputs.read(self.connected, kept & output.varies)
        needed = reads & channels.varies
        if self.bordered and (reads & (channels.constants.nan_to_num(0.0) != 0)).any():
            needed[constant_inputs.representative(channels.constants)] = True
        return [needed]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        (channels,) = inputs
        (needed,) = self.needs(inputs, output, kept)
        held = build.held(self, 0)
        assert needed is not None
        few = needed if needed.any() else held & (held.cumsum(0) == 1)
        if 2 * few.sum() <= held.sum():  # a copy of what is read costs less than reading all
            held = few
        source = build.take(self, 0, held)
        maps = build.maps(self, 0)
        if kept.all() and held.all() and output.varies.all() and channels.varies.all():
            return build.copy(self.node, {self.sources[0]: source})
        before, after = channels.constants, output.constants[kept]
        if maps is None:
            bias = None if self.bias is None else self.bias[kept]
            weights, bias = constant_inputs.folded(self.weights[kept], bias, before, after, self.bordered)
            return build.replace(self.node, source, resized(self.module, weights[:, held], bias, 1))
        offsets = self._offsets(torch.where(broadcast(channels.varies, self.axis, maps.ndim), 0.0, maps))[kept]
        weights, _ = constant_inputs.folded(self.weights[kept], None, before, after, False)
        bias = constant_inputs.uniform(offsets)
        node = build.replace(self.node, source, resized(self.module, weights[:, held], bias, 1))
        return node if bias is not None else build.part(self.node, Shift(offsets.movedim(0, self.axis - 1)), node)

    def _offsets(self, maps: Tensor) -> Tensor:
        """What the layer gives where it reads only this, the channels first."""
        module = copy.deepcopy(self.module).double().cpu()
        return module(maps[None])[0].detach().movedim(self.axis - 1, 0)  # type: ignore[no-any-return]


class Grouped(Layer):
    """A convolution in groups, depthwise ones included: a group stays whole, or goes."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int, module: Weighted) -> None:
        super().__init__(node, source, axis, module)
        self.size = self.weights.shape[0] // self.groups

    def widen(self, needed: Tensor) -> Tensor:
        return self._groups(needed).repeat_interleave(self.size)

    def needs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [self._groups(kept).repeat_interleave(self.weights.shape[1])]

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        (needed,) = self.needs(inputs, output, kept)
        assert needed is not None
        source = build.take(self, 0, needed)
        if kept.all():
            return build.copy(self.node, {self.sources[0]: source})
        bias = None if self.bias is None else self.bias[kept]
        groups = int(self._groups(kept).sum())
        return build.replace(self.node, source, resized(self.module, self.weights[kept], bias, groups))

    def _groups(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(self.groups, self.size).any(1)


class Norm(Pointwise):
    """A batch norm with running statistics: a factor and a shift per channel."""

    def __init__(self, node: fx.Node, source: fx.Node, module: _BatchNorm) -> None:
        super().__init__(node, source, 1)
        self.module = module

    def forward(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        module = self.module
        assert module.running_mean is not None
        assert module.running_var is not None
        factor = (module.running_var.double().cpu() + module.eps).rsqrt()
        factor = factor if module.weight is None else factor * module.weight.detach().double().cpu()
        constants = (channels.constants - module.running_mean.double().cpu()) * factor
        constants = torch.where(factor == 0, 0.0, constants)
        constants = constants if module.bias is None else constants + module.bias.detach().double().cpu()
        return known(1, constants, channels.carries)

    def rebuild(self, build: Builder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        source = build.take(self, 0, kept)
        if kept.all():
            return build.copy(self.node, {self.sources[0]: source})
        module = copy.copy(self.module)
        module._parameters, module._buffers = dict(module._parameters), dict(module._buffers)
        module.num_features = int(kept.sum())
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.ndim:
                smaller = tensor.detach()[kept.to(tensor.device)]
                is_parameter = name in module._parameters
                setattr(module, name, nn.Parameter(smaller, tensor.requires_grad) if is_parameter else smaller)
        return build.replace(self.node, source, module)


def resized(module: Weighted, weights: Tensor, bias: Tensor | None, groups: int) -> Weighted:
    """A layer like this one, with other weights (as of `as_matrix`) and another bias."""
    old, has_bias = module.weight, module.bias is not None
    weights = weights.to(old).reshape(*weights.shape[:2], *old.shape[2:])
    if isinstance(module, _ConvTransposeNd):
        weights = weights.transpose(0, 1).contiguous()
    module = copy.copy(module)
    module._parameters = {
        "weight": nn.Parameter(weights, old.requires_grad),
        "bias": nn.Parameter(bias.to(old), old.requires_grad)
        if bias is not None and (has_bias or bias.any())
        else None,
    }
    outputs, inputs = (
        (weights.shape[1], weights.shape[0]) if isinstance(module, _ConvTransposeNd) else weights.shape[:2]
    )
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        module.in_channels, module.out_channels, module.groups = inputs * groups, outputs, groups
    return module

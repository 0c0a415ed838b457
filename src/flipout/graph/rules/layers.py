"""Rules of Linear and convolution layers, whose constant inputs are folded into weights and bias, in float64.

Weights have the shape (outputs, inputs of a group, kernel positions). Constants are one number per input channel, NaN
for a channel that varies. A layer is `bordered` if some output positions do not see the whole kernel, as with zero
padding. There a nonzero constant has another effect at the borders, and cannot become part of the bias.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..channels import AddConstant, Channels, broadcast_channels
from .base import Call, Rule

if TYPE_CHECKING:
    from ..rebuild import GraphBuilder

WeightModule = nn.Linear | _ConvNd


def weights_by_output(module: WeightModule) -> Tensor:
    """Return the weights as (outputs, inputs of a group, kernel positions), on the CPU."""
    weight = module.weight.detach().cpu()
    if isinstance(module, _ConvTransposeNd):  # stores inputs first
        weight = weight.transpose(0, 1)
    return weight.reshape(*weight.shape[:2], weight.shape[2:].numel())


def is_bordered(module: WeightModule) -> bool:
    """Return whether some output positions do not see the whole kernel."""
    if isinstance(module, nn.Linear):
        return False
    if isinstance(module, _ConvTransposeNd):
        return True
    if module.padding_mode != "zeros" or module.padding == "valid":
        return False
    if module.padding == "same":
        return any(size > 1 for size in module.kernel_size)
    return any(module.padding)


class WeightedLayerRule(Rule):
    """A Linear or convolution layer; the base of the rules with and without groups."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int, module: WeightModule) -> None:
        super().__init__(node, [source], [axis])
        self.axis, self.module = axis, module
        self.weights, self.bordered = weights_by_output(module), is_bordered(module)
        self.bias = None if module.bias is None else module.bias.detach().cpu()
        self.groups = 1 if isinstance(module, nn.Linear) else module.groups
        self.connected = (self.weights != 0).any(2).reshape(self.groups, len(self.weights) // self.groups, -1)
        """Whether an output of a group reads an input of that group: (groups, outputs, inputs)."""

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        (channels,) = inputs
        foldable = channels.constants == 0 if self.bordered else ~channels.varies
        constants = bias_from_constants(self.weights, channels.constants, self.groups)
        if self.bias is not None:
            constants = constants + self.bias.double()
        constants = torch.where(outputs_reading(self.connected, ~foldable), torch.nan, constants)
        dependent = outputs_reading(self.connected, channels.input_dependent)
        return Channels.known(self.axis, constants, dependent)

    def influencing_inputs(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        return [inputs_read_by(self.connected, wanted & output.varies) & inputs[0].varies]


class UngroupedLayerRule(WeightedLayerRule):
    """A layer without groups. Each input and each output can be removed, and constant inputs are folded."""

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        (channels,) = inputs
        reads = inputs_read_by(self.connected, kept & output.varies)
        needed = reads & channels.varies
        if self.bordered and (reads & (channels.constants.nan_to_num(0.0) != 0)).any():
            needed[representative_input(channels.constants)] = True
        return [needed]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        (channels,) = inputs
        (needed,) = self.required_inputs(inputs, output, kept)
        remaining = build.remaining(self, 0)
        assert needed is not None
        few = needed if needed.any() else remaining & (remaining.cumsum(0) == 1)
        if 2 * few.sum() <= remaining.sum():  # copying the channels that are read costs less than reading all
            remaining = few
        source = build.select(self, 0, remaining)
        example_value = build.example_value(self, 0)
        if kept.all() and remaining.all() and output.varies.all() and channels.varies.all():
            return build.copy(self.node, {self.sources[0]: source})
        before, after = channels.constants, output.constants[kept]
        if example_value is None:
            bias = None if self.bias is None else self.bias[kept]
            weights, bias = fold_constants(self.weights[kept], bias, before, after, self.bordered)
            return build.replace(self.node, source, resized_layer(self.module, weights[:, remaining], bias, 1))
        varies = broadcast_channels(channels.varies, self.axis, example_value.ndim)
        exact, constant = copy.deepcopy(self.module).double().cpu(), torch.where(varies, 0.0, example_value)
        offsets = exact(constant[None])[0].detach().movedim(self.axis - 1, 0)[kept]  # of one example, channels first
        weights, _ = fold_constants(self.weights[kept], None, before, after, False)
        bias = uniform_values(offsets)
        node = build.replace(self.node, source, resized_layer(self.module, weights[:, remaining], bias, 1))
        if bias is not None:
            return node
        return build.insert(self.node, AddConstant(offsets.movedim(0, self.axis - 1)), node)


class GroupedLayerRule(WeightedLayerRule):
    """A convolution with groups, depthwise convolutions included. A group is kept or removed as a whole."""

    def __init__(self, node: fx.Node, source: fx.Node, axis: int, module: WeightModule) -> None:
        super().__init__(node, source, axis, module)
        self.group_outputs = self.weights.shape[0] // self.groups

    def expand(self, needed: Tensor) -> Tensor:
        return self._groups(needed).repeat_interleave(self.group_outputs)

    def required_inputs(self, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> list[Tensor | None]:
        return [self._groups(kept).repeat_interleave(self.weights.shape[1])]

    def rebuild(self, build: GraphBuilder, inputs: Sequence[Channels], output: Channels, kept: Tensor) -> fx.Node:
        (needed,) = self.required_inputs(inputs, output, kept)
        assert needed is not None
        source = build.select(self, 0, needed)
        if kept.all():
            return build.copy(self.node, {self.sources[0]: source})
        bias = None if self.bias is None else self.bias[kept]
        groups = int(self._groups(kept).sum())
        return build.replace(self.node, source, resized_layer(self.module, self.weights[kept], bias, groups))

    def _groups(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(self.groups, self.group_outputs).any(1)


def resized_layer(module: WeightModule, weights: Tensor, bias: Tensor | None, groups: int) -> WeightModule:
    """Return a layer like this one with other weights, in the shape of `weights_by_output`, and another bias."""
    old, (outputs, inputs) = module.weight, weights.shape[:2]
    if bias is not None and module.bias is None and not bias.any():
        bias = None
    weights = weights.to(old).reshape(outputs, inputs, *old.shape[2:])
    if isinstance(module, _ConvTransposeNd):
        weights = weights.transpose(0, 1).contiguous()
    module = copy.copy(module)
    module._parameters = {
        "weight": nn.Parameter(weights, old.requires_grad),
        "bias": None if bias is None else nn.Parameter(bias.to(old), old.requires_grad),
    }
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        module.in_channels, module.out_channels, module.groups = inputs * groups, outputs, groups
    return module


def recognize_linear(call: Call) -> Rule | None:
    assert isinstance(call.module, nn.Linear)
    if call.dimensions < 2:
        return None
    return UngroupedLayerRule(call.node, call.source, call.dimensions - 1, call.module)


def recognize_convolution(call: Call, *, spatial: int) -> Rule | None:
    """Recognize a convolution of a batch; `spatial` is the number of axes after the channels."""
    assert isinstance(call.module, _ConvNd)
    if call.dimensions - 2 != spatial:
        return None
    if call.module.groups == 1:
        return UngroupedLayerRule(call.node, call.source, 1, call.module)
    is_transposed = isinstance(
        call.module, _ConvTransposeNd
    )  # its weight does not have the outputs of a group together
    return None if is_transposed else GroupedLayerRule(call.node, call.source, 1, call.module)


def outputs_reading(connected: Tensor, inputs: Tensor) -> Tensor:
    """Return which outputs read any of these inputs."""
    groups, _, size = connected.shape
    return (connected & inputs.reshape(groups, 1, size)).any(2).flatten()


def inputs_read_by(connected: Tensor, outputs: Tensor) -> Tensor:
    """Return which inputs any of these outputs reads."""
    groups, size, _ = connected.shape
    return (connected & outputs.reshape(groups, size, 1)).any(1).flatten()


def bias_from_constants(weights: Tensor, constants: Tensor, groups: int) -> Tensor:
    """Return what constant inputs add to each output where the whole kernel sees them: `sum_i c_i sum_k w_oik`."""
    total = weights.new_zeros(weights.shape[0], dtype=torch.float64)
    values = constants.nan_to_num(0.0).reshape(groups, 1, -1)
    used = (values != 0).any(0).flatten()
    if used.any():
        sums = weights[:, used].double().sum(2).reshape(groups, -1, int(used.sum()))
        total = (sums * values[..., used]).sum(2).flatten()
    return total


def representative_input(constants: Tensor) -> int | None:
    """Return the input that stands for all nonzero constants: the largest, so that no ratio to it exceeds one."""
    sizes = constants.nan_to_num(0.0).abs()
    return int(sizes.argmax()) if sizes.any() else None


def fold_constants(
    weights: Tensor, bias: Tensor | None, inputs: Tensor, outputs: Tensor, bordered: bool
) -> tuple[Tensor, Tensor | None]:
    """Return weights and bias with the same outputs that do not read constant inputs, or only one if bordered.

    `inputs` and `outputs` are the constants before and after the layer. A constant output becomes pure bias.
    """
    bias = None if bias is None else bias.double()
    if bordered and (chosen := representative_input(inputs)) is not None:
        # One input reads for all constants: w_ork = sum_i w_oik c_i / c_r.
        column = torch.einsum("oik,i->ok", weights.double(), inputs.nan_to_num(0.0) / inputs[chosen])
        weights = torch.where(inputs.isnan()[:, None], weights.double(), 0.0)
        weights[:, chosen] = column
    elif not bordered:
        shift = bias_from_constants(weights, inputs, 1)
        bias = shift if bias is None else bias + shift
        weights = torch.where(inputs.isnan()[:, None], weights, 0.0)
    weights = torch.where(outputs.isnan()[:, None, None], weights, 0.0)
    bias = torch.where(outputs.isnan(), torch.zeros_like(outputs) if bias is None else bias, outputs)
    return weights, bias


def uniform_values(maps: Tensor) -> Tensor | None:
    """Return the value of each (channel, positions...) if it is the same at all positions up to rounding, else None."""
    flat = maps.reshape(len(maps), -1)
    differs = (flat - flat[:, :1]).abs().max() > 1e-12 * flat.abs().max()
    return None if differs else flat[:, 0]

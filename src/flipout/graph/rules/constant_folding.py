"""Fold constant inputs of a layer into its weights and bias, in float64.

Weights have the shape (outputs, inputs of a group, kernel positions). Constants are one number per input channel, NaN
for a channel that varies. A layer is `bordered` if some output positions do not see the whole kernel, as with zero
padding. There a nonzero constant has another effect at the borders, and cannot become part of the bias.
"""

from __future__ import annotations

import torch
from torch import Tensor


def connections(weights: Tensor, groups: int) -> Tensor:
    """Return whether an output of a group reads an input of that group: (groups, outputs, inputs)."""
    return (weights != 0).any(2).reshape(groups, weights.shape[0] // groups, weights.shape[1])


def unfoldable_inputs(constants: Tensor, bordered: bool) -> Tensor:
    """Return which inputs cannot be folded into the bias."""
    return constants.isnan() | (constants != 0) if bordered else constants.isnan()


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


def constant_outputs(weights: Tensor, bias: Tensor | None, constants: Tensor, groups: int, bordered: bool) -> Tensor:
    """Return the constant value of each output; NaN for an output that varies."""
    varies = outputs_reading(connections(weights, groups), unfoldable_inputs(constants, bordered))
    values = bias_from_constants(weights, constants, groups)
    if bias is not None:
        values = values + bias.double()
    return torch.where(varies, torch.nan, values)


def representative_input(constants: Tensor) -> int | None:
    """Return the input that stands for all nonzero constants: the largest, so that no ratio to it exceeds one."""
    sizes = constants.nan_to_num(0.0).abs()
    return int(sizes.argmax()) if sizes.any() else None


def merge_constant_inputs(weights: Tensor, constants: Tensor) -> Tensor:
    """Return weights that read one constant input `r` instead of all of them: `w_ork = sum_i w_oik c_i / c_r`."""
    chosen = representative_input(constants)
    weights = weights.double()
    if chosen is not None:
        ratios = constants.nan_to_num(0.0) / constants[chosen]
        column = torch.einsum("oik,i->ok", weights, ratios)
        weights = torch.where(constants.isnan()[:, None], weights, 0.0)
        weights[:, chosen] = column
    return weights


def fold_constants(
    weights: Tensor, bias: Tensor | None, inputs: Tensor, outputs: Tensor, bordered: bool
) -> tuple[Tensor, Tensor | None]:
    """Return weights and bias with the same outputs that do not read constant inputs, or only one if bordered.

    `inputs` and `outputs` are the constants before and after the layer. A constant output becomes pure bias.
    """
    bias = None if bias is None else bias.double()
    if bordered:
        weights = merge_constant_inputs(weights, inputs)
    else:
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

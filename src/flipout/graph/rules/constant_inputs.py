"""The mathematics of a layer whose inputs are partly constant, in float64.

Weights are seen as (outputs, inputs of a group, taps), and constants as one number per input channel, NaN
where it varies. A layer is `bordered` if not every position sees every tap, as with zero padding: then a constant other
than zero gives something else at the borders, and cannot become part of the bias.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alive(weights: Tensor, groups: int) -> Tensor:
    """Whether an output of a group reads an input of it: (groups, outputs, inputs)."""
    return (weights != 0).any(2).reshape(groups, weights.shape[0] // groups, weights.shape[1])


def unfoldable(constants: Tensor, bordered: bool) -> Tensor:
    """The inputs that make an output vary."""
    return constants.isnan() | (constants != 0) if bordered else constants.isnan()


def reached(connected: Tensor, inputs: Tensor) -> Tensor:
    """The outputs that read any of these inputs."""
    groups, _, size = connected.shape
    return (connected & inputs.reshape(groups, 1, size)).any(2).flatten()


def read(connected: Tensor, outputs: Tensor) -> Tensor:
    """The inputs that any of these outputs reads."""
    groups, size, _ = connected.shape
    return (connected & outputs.reshape(groups, size, 1)).any(1).flatten()


def added(weights: Tensor, constants: Tensor, groups: int) -> Tensor:
    """What constant inputs add to each output, where every tap sees them: `sum_i c_i sum_taps w_oi`."""
    total = weights.new_zeros(weights.shape[0], dtype=torch.float64)
    values = constants.nan_to_num(0.0).reshape(groups, 1, -1)
    used = (values != 0).any(0).flatten()
    if used.any():
        sums = weights[:, used].double().sum(2).reshape(groups, -1, int(used.sum()))
        total = (sums * values[..., used]).sum(2).flatten()
    return total


def constant_outputs(weights: Tensor, bias: Tensor | None, constants: Tensor, groups: int, bordered: bool) -> Tensor:
    """The constant that each output is, NaN where it varies."""
    varies = reached(alive(weights, groups), unfoldable(constants, bordered))
    values = added(weights, constants, groups)
    if bias is not None:
        values = values + bias.double()
    return torch.where(varies, torch.nan, values)


def representative(constants: Tensor) -> int | None:
    """The one of the nonzero constants that stands for all; the largest, so that no ratio to it exceeds one."""
    sizes = constants.nan_to_num(0.0).abs()
    return int(sizes.argmax()) if sizes.any() else None


def merged(weights: Tensor, constants: Tensor) -> Tensor:
    """The same outputs from one constant input in place of many: `w_or = sum_i w_oi c_i / c_r` at each tap."""
    chosen = representative(constants)
    weights = weights.double()
    if chosen is not None:
        ratios = constants.nan_to_num(0.0) / constants[chosen]
        column = torch.einsum("oit,i->ot", weights, ratios)
        weights = torch.where(constants.isnan()[:, None], weights, 0.0)
        weights[:, chosen] = column
    return weights


def folded(
    weights: Tensor, bias: Tensor | None, inputs: Tensor, outputs: Tensor, bordered: bool
) -> tuple[Tensor, Tensor | None]:
    """Weights and bias that give the same without reading constant inputs, or with only one of them if bordered.

    `inputs` and `outputs` are the constants before and after. A constant output is all bias.
    """
    bias = None if bias is None else bias.double()
    if bordered:
        weights = merged(weights, inputs)
    else:
        shift = added(weights, inputs, 1)
        bias = shift if bias is None else bias + shift
        weights = torch.where(inputs.isnan()[:, None], weights, 0.0)
    weights = torch.where(outputs.isnan()[:, None, None], weights, 0.0)
    bias = torch.where(outputs.isnan(), torch.zeros_like(outputs) if bias is None else bias, outputs)
    return weights, bias


def uniform(maps: Tensor) -> Tensor | None:
    """The number that each of these (channels, positions...) is everywhere but for rounding; None if one is not."""
    flat = maps.reshape(len(maps), -1)
    differs = (flat - flat[:, :1]).abs().max() > 1e-12 * flat.abs().max()
    return None if differs else flat[:, 0]

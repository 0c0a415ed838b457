"""Parked weights: kept by the mask, but removed from the network with a channel that nothing reads.

Their gradient is exactly 0. Without shrinking, weight decay, momentum and noise would still change them, and the next
prunings would rank them with all others. So they go on as a vector that the optimizer and the pruner hold, but not the
network: what happens to the masks is what would have happened without shrinking.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..layers import Layer
from ..positions import ListedPositions
from .tensor_parts import take_elements


def park(
    layer: Layer, originals: Mapping[str, Tensor], elements: Tensor, optimizer: torch.optim.Optimizer | None
) -> Layer:
    """Make a layer of some weights, from the original tensors of theirs. The optimizer holds it from now on."""
    assert optimizer is not None  # a copy without an optimizer has no masks
    shape = originals["values"].shape
    holder = nn.Module()
    holder.weight = nn.Parameter(take_elements(originals["values"], elements))
    parked = Layer(layer.name, holder, holder.weight, layer.number)
    parked.mask = take_elements(originals["mask"], elements)
    parked.positions = ListedPositions.of(shape, elements)
    parked.count()
    for name, statistic in layer.statistics.items():
        own = copy.copy(statistic)
        vars(own).update({key: value.clone() for key, value in vars(own).items() if isinstance(value, Tensor)})
        own.place = replace(statistic.place, positions=parked.positions)
        own.state = {
            part: take_elements(originals[f"statistics {name} {part}"], elements)
            if part in statistic.elements
            else tensor.clone()
            for part, tensor in statistic.state.items()
        }
        own.loaded()
        parked.statistics[name] = own
    if layer.weight in optimizer.state:
        optimizer.state[parked.weight] = {
            key: take_elements(originals[f"optimizer {key}"], elements)
            if f"optimizer {key}" in originals
            else copy.deepcopy(value)
            for key, value in optimizer.state[layer.weight].items()
        }
    group = next(group for group in optimizer.param_groups if any(each is layer.weight for each in group["params"]))
    group["params"].append(parked.weight)
    if "param_names" in group:  # of an optimizer with named parameters
        group["param_names"].append(f"{layer.name} (parked)")
    return parked


def unpark(parked: Layer, optimizer: torch.optim.Optimizer | None) -> None:
    """Take parked weights from the optimizer again."""
    assert optimizer is not None  # a copy without an optimizer parks nothing
    optimizer.state.pop(parked.weight, None)
    for group in optimizer.param_groups:
        kept = [parameter is not parked.weight for parameter in group["params"]]
        for key in ("params", "param_names"):
            if key in group:
                group[key][:] = itertools.compress(group[key], kept)


def set_gradients(layers: Mapping[str, Layer], parked: Sequence[Layer]) -> None:
    """Give parked weights the gradient that they have in the network: 0, or none if their layer has none."""
    for each in parked:
        has_none = layers[each.name].weight.grad is None
        each.weight.grad = None if has_none else torch.zeros_like(each.weight)

"""Everything that belongs to the elements of a parameter or a buffer, and changes its shape with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..layers import Layer
from .tensor_parts import replace_values


@dataclass(frozen=True)
class Companion:
    """A tensor with one element for each element of a parameter or a buffer.

    Args:
        key: what it is: "values", "gradient", "mask", ...
        tensor: the tensor.
        replace: puts another tensor into its place.
        stays: whether the elements that are removed keep their values; otherwise they become 0.
    """

    key: str
    tensor: Tensor
    replace: Callable[[Tensor], None]
    stays: bool = True


def companions(tensor: Tensor, optimizer: torch.optim.Optimizer | None, layer: Layer | None) -> list[Companion]:
    """The values of a parameter or a buffer first, and then all that belongs to them."""
    found = [Companion("values", tensor.detach(), partial(replace_values, tensor))]
    if tensor.grad is not None:
        found.append(Companion("gradient", tensor.grad, partial(setattr, tensor, "grad"), stays=False))
    state = {} if optimizer is None else optimizer.state.get(tensor, {})
    found += _entries("optimizer", state, [key for key, value in state.items() if _fits(value, tensor)])
    if layer is not None:
        found.append(Companion("mask", layer.mask, partial(setattr, layer, "mask")))
        for name, statistic in layer.statistics.items():
            found += _entries(f"statistics {name}", statistic.state, list(statistic.elements))
    return found


def unfit_states(tensor: Tensor, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of what an optimizer keeps for a parameter and that cannot be cut with it.

    These are tensors that have neither its shape nor one element, and tensors in lists or dictionaries.
    """
    state = optimizer.state.get(tensor, {})
    return [
        key
        for key, value in state.items()
        if not _fits(value, tensor)
        and any(isinstance(each, Tensor) and each.numel() != 1 for each in _pytree.tree_leaves(value))
    ]


def unfit_statistics(layer: Layer) -> Iterator[tuple[str, str]]:
    """The statistics of a layer, and their state, that have another shape than the weight and are not declared as
    shared."""
    for name, statistic in layer.statistics.items():
        for part, tensor in statistic.elements.items():
            if tensor.shape != layer.weight.shape:
                yield name, part


def _entries(prefix: str, entries: MutableMapping[str, Any], keys: list[str]) -> list[Companion]:
    return [Companion(f"{prefix} {key}", entries[key], partial(entries.__setitem__, key)) for key in keys]


def _fits(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == tensor.shape

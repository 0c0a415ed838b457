"""A network with fewer channels: what is left of each tensor, and the originals, to write it back into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from ..channels.resize import Attributes, fit, outputs_of_group, owners
from ..modules import named_tensors, unwrapped
from ..views import Positions, View, whole
from ..views.cut import Cut, Indices, put, take
from ..weights import Weight


@dataclass(frozen=True)
class Companion:
    """A tensor with one element for each element of a parameter or a buffer, which changes its shape with it.

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


def companions(tensor: Tensor, optimizer: torch.optim.Optimizer | None, weight: Weight | None) -> list[Companion]:
    """The values of a parameter or a buffer first, and then all that belongs to them."""
    found = [Companion("values", tensor.detach(), partial(replace_values, tensor))]
    if tensor.grad is not None:
        found.append(Companion("gradient", tensor.grad, partial(setattr, tensor, "grad"), stays=False))
    state = {} if optimizer is None else optimizer.state.get(tensor, {})
    found += _entries("optimizer", state, [key for key, value in state.items() if _fits(value, tensor)])
    if weight is not None:
        found.append(Companion("mask", weight.mask, partial(setattr, weight, "mask")))
        for name, statistic in weight.statistics.items():
            found += _entries(f"statistics {name}", statistic.state, list(statistic.elements))
        found += _entries("form", weight.slots, [key for key, slot in weight.slots.items() if slot.ndim])
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


def unfit_statistics(weight: Weight) -> Iterator[tuple[str, str]]:
    """The statistics of a weight, and their state, that have another shape than its mask and are not declared as
    shared."""
    for name, statistic in weight.statistics.items():
        for key, tensor in statistic.elements.items():
            if tensor.shape != weight.mask.shape:
                yield name, key


class NetworkCut:
    """Removes channels from a network in place, with all that belongs to them, and puts them back.

    The modules, the parameters and the buffers stay the same objects, with smaller tensors in them. What is removed
    keeps its values in the originals, and so does what the optimizer and the pruner have for it.

    Args:
        model: the network.
        optimizer: the optimizer that trains it; None for a copy that is not trained, such as a moving average.
        weights: the weights of the pruner; none for a copy.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, weights: Sequence[Weight]) -> None:
        self._model, self._optimizer, self._weights = model, optimizer, {weight.name: weight for weight in weights}
        self._left: dict[str, Positions] = {}
        self._originals: dict[str, dict[str, Tensor]] = {}
        self._outputs_of_group: dict[str, int | None] = {}
        self._attributes: dict[str, dict[str, Any]] = {}  # those of the smaller network, or of the whole one
        self._prepared: dict[str, list[tuple[Companion, Tensor]]] = {}

    @property
    def indices(self) -> dict[str, Indices]:
        """For each tensor that is cut, the indices that are left in each dimension."""
        return {name: left.indices for name, left in self._left.items()}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The original shape of each tensor that is cut."""
        return {name: left.shape for name, left in self._left.items()}

    @torch.no_grad()
    def prepare(self, indices: Mapping[str, Indices], attributes: Attributes) -> None:
        """Make the smaller tensors. The network is not changed yet.

        Args:
            indices: what is left of each tensor.
            attributes: the attributes of modules that change with them.
        """
        tensors, network = named_tensors(self._model), unwrapped(self._model)
        self._attributes = {path: dict(each) for path, each in attributes.items()}
        for path in owners(indices):
            self._outputs_of_group[path] = outputs_of_group(network.get_submodule(path))
        for name, kept in indices.items():
            left = self._left[name] = Positions(tensors[name].shape, kept)
            found = companions(tensors[name], self._optimizer, self._weights.get(name))
            self._prepared[name] = [(each, take(each.tensor, left)) for each in found]
            self._originals[name] = {each.key: each.tensor for each in found if each.stays}

    @torch.no_grad()
    def commit(self) -> None:
        """Put the smaller tensors into the network."""
        for name, prepared in self._prepared.items():
            for each, held in prepared:
                each.replace(held)
            if (weight := self._weights.get(name)) is not None:
                _look_through(weight, Cut(self._left[name]))
        self._prepared = {}
        self._fit_modules()

    @torch.no_grad()
    def undo(self, masks: Mapping[str, Tensor] | None = None) -> None:
        """Make the network whole again. What is left is written back; what was removed is as it was then.

        Args:
            masks: for a copy, the masks of the whole network. What was removed from the copy and is pruned becomes 0: a
                moving average still had old values there, which would not fade any more.
        """
        tensors = named_tensors(self._model)
        for name, left in self._left.items():
            originals, weight = self._originals[name], self._weights.get(name)
            if masks is not None and name in masks:
                originals["values"].masked_fill_(~masks[name], 0)
            for each in companions(tensors[name], self._optimizer, weight):
                original = originals.get(each.key)
                if original is None:  # what the optimizer has added since
                    original = torch.zeros(left.shape, dtype=each.tensor.dtype, device=each.tensor.device)
                put(original, each.tensor, left)
                each.replace(original)
            if weight is not None:
                _look_through(weight, whole(weight.parameter))
        self._fit_modules()

    def _fit_modules(self) -> None:
        """Make what modules state about themselves agree with their tensors: the other values of the attributes that
        change, and the sizes."""
        network = unwrapped(self._model)
        for path, attributes in self._attributes.items():
            module = network.get_submodule(path)
            for name, value in attributes.items():
                attributes[name] = getattr(module, name)
                setattr(module, name, value)
        for path, outputs in self._outputs_of_group.items():
            fit(network.get_submodule(path), outputs)


def same_indices(one: Mapping[str, Indices], other: Mapping[str, Indices]) -> bool:
    """Whether two cuts leave the same of each tensor."""
    if one.keys() != other.keys():
        return False
    pairs = [pair for name in one for pair in zip(one[name], other[name], strict=True)]
    return all(a is b if a is None or b is None else torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def replace_values(tensor: Tensor, values: Tensor) -> None:
    """Give a parameter or a buffer other values, of another shape. Every reference to it sees them.

    A loss that somebody still holds keeps the node alive that accumulates the gradient of a parameter, in its old
    shape. Torch drops that node if the type of the tensor changes; so it changes, and changes back.
    """
    tensor.grad = None
    other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
    if tensor.requires_grad:
        tensor.data = torch.empty(0, dtype=other, device=tensor.device)
    tensor.data = values


def _look_through(weight: Weight, view: View) -> None:
    """Tell a weight and its statistics which elements they have now. What is removed still counts."""
    weight.view, weight.settled_version = view, ()
    for statistic in weight.statistics.values():
        statistic.place = replace(statistic.place, positions=view.positions)
        statistic.loaded()


def _entries(prefix: str, entries: MutableMapping[str, Any], keys: list[str]) -> list[Companion]:
    return [Companion(f"{prefix} {key}", entries[key], partial(entries.__setitem__, key)) for key in keys]


def _fits(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == tensor.shape

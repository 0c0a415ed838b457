"""A network with fewer channels: what is left of each tensor, and the originals, to write it back into."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from ..channels.resize import Attributes, fit, outputs_of_group, owners
from ..modules import named_tensors, unwrapped
from ..runtime.optimizer_state import group_of
from ..views import Positions, whole
from ..views.cut import Cut, Indices, elements_outside, put, put_elements, take, take_elements
from ..weights import Weight, count_weights


@dataclass(frozen=True)
class Companion:
    """A tensor with one element for each element of a parameter or a buffer, which changes its shape with it.

    Args:
        key: what it is: "values", "gradient", "mask", ...
        tensor: the tensor.
        replace: puts another tensor into its place.
        stays: whether the elements that are removed keep their values; otherwise they become 0.
        kept: whether the pruner keeps it, so that it includes weights that are set aside.
    """

    key: str
    tensor: Tensor
    replace: Callable[[Tensor], None]
    stays: bool = True
    kept: bool = False


def companions(tensor: Tensor, optimizer: torch.optim.Optimizer | None, weight: Weight | None) -> list[Companion]:
    """The values of a parameter or a buffer first, and then all that belongs to them."""
    found = [Companion("values", tensor.detach(), partial(replace_values, tensor))]
    if tensor.grad is not None:
        found.append(Companion("gradient", tensor.grad, partial(setattr, tensor, "grad"), stays=False))
    state = {} if optimizer is None else optimizer.state.get(tensor, {})
    found += _entries("optimizer", state, [key for key, value in state.items() if _fits(value, tensor)])
    if weight is not None:
        found.append(Companion("mask", weight.mask, partial(setattr, weight, "mask"), kept=True))
        for name, statistic in weight.statistics.items():
            found += _entries(f"statistics {name}", statistic.state, list(statistic.elements), kept=True)
        found += _entries("form", weight.slots, [key for key, slot in weight.slots.items() if slot.ndim], kept=True)
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
    keeps its values in the originals. Kept weights among it are set aside: see `Cut`.

    Args:
        model: the network.
        optimizer: the optimizer that trains it; None for a copy that is not trained, such as a moving average.
        weights: the weights of the pruner; none for a copy.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, weights: Sequence[Weight]) -> None:
        self._model, self._optimizer, self._weights = model, optimizer, {weight.name: weight for weight in weights}
        self._cuts: dict[str, Cut] = {}
        self._originals: dict[str, dict[str, Tensor]] = {}
        self._outputs_of_group: dict[str, int | None] = {}
        self._attributes: dict[str, dict[str, Any]] = {}  # those of the smaller network, or of the whole one
        self._fitted = False
        self._prepared: dict[str, list[tuple[Companion, Tensor]]] = {}

    @property
    def indices(self) -> dict[str, Indices]:
        """For each tensor that is cut, the indices that are left in each dimension."""
        return {name: cut.indices for name, cut in self._cuts.items()}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The original shape of each tensor that is cut."""
        return {name: cut.positions.shape for name, cut in self._cuts.items()}

    def apply(self, indices: Mapping[str, Indices], attributes: Attributes) -> None:
        """Cut a whole network."""
        self.prepare(indices, attributes)
        self.commit()

    @torch.no_grad()
    def prepare(self, indices: Mapping[str, Indices], attributes: Attributes) -> None:
        """Make the smaller tensors. The network is not changed yet.

        Args:
            indices: what is left of each tensor.
            attributes: the attributes of modules that change with them.
        """
        assert not self._cuts
        tensors, network = named_tensors(self._model), unwrapped(self._model)
        self._attributes = {path: dict(each) for path, each in attributes.items()}
        for path in owners(indices):
            self._outputs_of_group[path] = outputs_of_group(network.get_submodule(path))
        for name, kept in indices.items():
            self._prepare(name, tensors[name], kept)

    def _prepare(self, name: str, tensor: Tensor, kept: Indices) -> None:
        weight, shape = self._weights.get(name), tensor.shape
        aside = None if weight is None else elements_outside(weight.mask, Positions(shape, tuple(kept)))
        cut = self._cuts[name] = Cut(shape, kept, aside)
        found = companions(tensor, self._optimizer, weight)
        self._prepared[name] = [
            (each, cut.take(each.tensor) if each.kept else take(each.tensor, cut.left)) for each in found
        ]
        self._originals[name] = {each.key: each.tensor for each in found if each.stays}

    @torch.no_grad()
    def commit(self) -> None:
        """Put the smaller tensors into the network."""
        for name, prepared in self._prepared.items():
            for each, held in prepared:
                each.replace(held)
            if (weight := self._weights.get(name)) is not None:
                self._set_aside(weight, self._cuts[name])
                _look_through(weight, self._cuts[name])
        self._prepared = {}
        if not self._fitted:
            self._exchange_attributes()
        self._fit_modules()

    @torch.no_grad()
    def drop_pruned(self) -> None:
        """Set the weights of a tensor aside anew if some of those that were set aside have been pruned since.

        So what is set aside depends on the masks alone, and not on when the network was expanded to be saved.
        """
        tensors = named_tensors(self._model)
        for name, cut in list(self._cuts.items()):
            weight = self._weights.get(name)
            if weight is not None and cut.aside is not None and not bool(cut.set_aside(weight.mask).all()):
                self._restore(name, tensors[name])
                self._prepare(name, tensors[name], cut.indices)
                self.commit()

    @torch.no_grad()
    def undo(self, masks: Mapping[str, Tensor] | None = None) -> None:
        """Make the network whole again. What is left is written back; what was removed is as it was then.

        Args:
            masks: for a copy, the masks of the whole network. What was removed from the copy and is pruned becomes 0: a
                moving average still had old values there, which would not fade any more.
        """
        masks, tensors = masks or {}, named_tensors(self._model)
        for name in masks.keys() & self._cuts.keys():
            pruned = elements_outside(~masks[name], self._cuts[name].left)
            values = self._originals[name]["values"]
            put_elements(values, torch.zeros(len(pruned), device=values.device), pruned)
        for name in self._cuts:
            self._restore(name, tensors[name])
        self._exchange_attributes()
        self._fit_modules()
        self._cuts, self._originals, self._outputs_of_group = {}, {}, {}

    def _restore(self, name: str, tensor: Tensor) -> None:
        """Put the original tensors back, with what became of the elements that are left or set aside."""
        weight, cut, originals = self._weights.get(name), self._cuts[name], self._originals[name]
        aside = None if cut.aside is None else companions(cut.aside, self._optimizer, None)
        aside_values = {each.key: each.tensor for each in aside or ()}
        for each in companions(tensor, self._optimizer, weight):
            original = originals.get(each.key)
            if original is None:  # what the optimizer has added since
                original = torch.zeros(cut.positions.shape, dtype=each.tensor.dtype, device=each.tensor.device)
            if each.kept:
                cut.write(original, each.tensor)
            else:
                put(original, each.tensor, cut.left)
                if each.key in aside_values:
                    put_elements(original, aside_values[each.key], cut.elements_aside)
            each.replace(original)
        if weight is not None:
            self._take_back(cut)
            _look_through(weight, whole(weight.parameter))

    def _set_aside(self, weight: Weight, cut: Cut) -> None:
        """Let the optimizer train the weights that are set aside."""
        if cut.direct:
            return
        optimizer, originals = self._optimizer, self._originals[weight.name]
        assert optimizer is not None  # a copy without an optimizer has no masks
        cut.aside = nn.Parameter(take_elements(originals["values"], cut.elements_aside))
        if weight.parameter in optimizer.state:
            optimizer.state[cut.aside] = {
                key: take_elements(originals[f"optimizer {key}"], cut.elements_aside)
                if f"optimizer {key}" in originals
                else copy.deepcopy(value)
                for key, value in optimizer.state[weight.parameter].items()
            }
        group = group_of(optimizer, weight.parameter)
        group["params"].append(cut.aside)
        if "param_names" in group:  # of an optimizer with named parameters
            group["param_names"].append(f"{weight.name} (set aside)")

    def _take_back(self, cut: Cut) -> None:
        """Take the weights that are set aside from the optimizer again."""
        if cut.aside is None or self._optimizer is None:
            return
        self._optimizer.state.pop(cut.aside, None)
        for group in self._optimizer.param_groups:
            kept = [parameter is not cut.aside for parameter in group["params"]]
            for key in ("params", "param_names"):
                if key in group:
                    group[key][:] = itertools.compress(group[key], kept)

    def _fit_modules(self) -> None:
        """Make the sizes that modules state about themselves agree with their tensors."""
        network = unwrapped(self._model)
        for path, outputs in self._outputs_of_group.items():
            fit(network.get_submodule(path), outputs)

    def _exchange_attributes(self) -> None:
        """Set the attributes of the smaller network, or those of the whole one again."""
        network, self._fitted = unwrapped(self._model), not self._fitted
        for path, attributes in self._attributes.items():
            module = network.get_submodule(path)
            for name, value in attributes.items():
                attributes[name] = getattr(module, name)
                setattr(module, name, value)


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


def _look_through(weight: Weight, view: Any) -> None:
    """Tell a weight and its statistics which elements they have now."""
    weight.view, weight.settled_version = view, ()
    count_weights([weight])
    for statistic in weight.statistics.values():
        statistic.place = replace(statistic.place, positions=view.positions)
        statistic.loaded()


def _entries(prefix: str, entries: MutableMapping[str, Any], keys: list[str], *, kept: bool = False) -> list[Companion]:
    return [Companion(f"{prefix} {key}", entries[key], partial(entries.__setitem__, key), kept=kept) for key in keys]


def _fits(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == tensor.shape

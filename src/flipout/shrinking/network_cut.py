"""A network with fewer channels: what is left of each tensor, and the originals, to write it back into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..layers import Layer
from ..modules import named_tensors, unwrapped
from ..positions import ListedPositions, Positions
from .companions import Companion, companions
from .parked_weights import park, unpark
from .tensor_parts import elements_outside, put, put_elements, take

Indices = tuple[Tensor | None, ...]


class NetworkCut:
    """Removes channels from a network in place, with all that belongs to them, and puts them back.

    The modules, the parameters and the buffers stay the same objects, with smaller tensors in them. What is removed
    keeps its values in the originals.

    Args:
        model: the network.
        optimizer: the optimizer that trains it; None for a copy that is not trained, such as a moving average.
        layers: the layers of the pruner; none for a copy.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, layers: Sequence[Layer]) -> None:
        self._model, self._optimizer, self._layers = model, optimizer, {layer.name: layer for layer in layers}
        self._positions: dict[str, Positions] = {}
        self._originals: dict[str, dict[str, Tensor]] = {}
        self._outputs_of_group: dict[str, int] = {}
        self._prepared: dict[str, list[tuple[Companion, Tensor]]] = {}
        self.parked: list[Layer] = []

    @property
    def indices(self) -> dict[str, Indices]:
        """For each tensor that is cut, the indices that are left in each dimension."""
        return {name: where.indices for name, where in self._positions.items()}

    def apply(self, indices: Mapping[str, Indices]) -> None:
        """Cut a whole network."""
        self.prepare(indices)
        self.commit()

    @torch.no_grad()
    def prepare(self, indices: Mapping[str, Indices]) -> None:
        """Make the smaller tensors. The network is not changed yet."""
        assert not self._positions
        tensors, network = named_tensors(self._model), unwrapped(self._model)
        for path in _paths(indices):
            module = network.get_submodule(path)
            if isinstance(module, _ConvNd) and module.groups > 1:
                self._outputs_of_group[path] = module.out_channels // module.groups
        for name, kept in indices.items():
            where = self._positions[name] = Positions(tensors[name].shape, tuple(kept))
            found = self._companions(name, tensors[name])
            self._prepared[name] = [(each, take(each.tensor, where)) for each in found]
            self._originals[name] = {each.key: each.tensor for each in found if each.stays}

    @torch.no_grad()
    def commit(self) -> None:
        """Put the smaller tensors into the network."""
        for name, parts in self._prepared.items():
            for each, part in parts:
                each.replace(part)
            if (layer := self._layers.get(name)) is not None:
                self._park(layer, self._positions[name])
                _settle(layer, self._positions[name])
        self._prepared = {}
        self._fit_modules()

    @torch.no_grad()
    def drop_pruned(self) -> None:
        """Take weights that were pruned since they were parked from the parked ones. What belongs to them stays as it
        is now."""
        for number, parked in enumerate(self.parked):
            if not parked.dense:
                layer, originals = self._layers[parked.name], self._originals[parked.name]
                for each in self._companions(layer.name, layer.weight):
                    if each.stays and each.key not in originals:  # what the optimizer has added since
                        originals[each.key] = _zeros(each.tensor, parked.positions.shape)
                for key, original in originals.items():
                    self._write_back(parked, key, original)
                self._unpark(parked)
                elements = parked.positions.elements()[parked.mask.cpu()]
                layer.parked = self.parked[number] = park(layer, originals, elements, self._optimizer)
        for parked in [each for each in self.parked if not each.kept]:
            self.parked.remove(parked)
            self._unpark(parked)

    @torch.no_grad()
    def undo(self, masks: Mapping[str, Tensor] | None = None) -> None:
        """Make the network whole again. What is left is written back; what was removed is as it was then.

        Args:
            masks: for a copy, the masks of the whole network. What was removed from the copy and is pruned becomes 0: a
                moving average still had old values there, which would not fade any more.
        """
        masks, tensors = masks or {}, named_tensors(self._model)
        for name in masks.keys() & self._positions.keys():
            pruned = elements_outside(~masks[name], self._positions[name])
            values = self._originals[name]["values"]
            put_elements(values, torch.zeros(len(pruned), device=values.device), pruned)
        for name, where in self._positions.items():
            for each in self._companions(name, tensors[name]):
                original = self._originals[name].get(each.key)
                if original is None:
                    original = _zeros(each.tensor, where.shape)
                put(original, each.tensor, where)
                for parked in self.parked:
                    if parked.name == name:
                        self._write_back(parked, each.key, original)
                each.replace(original)
            if (layer := self._layers.get(name)) is not None:
                _settle(layer, Positions.all_of(where.shape))
        for parked in self.parked:
            self._unpark(parked)
        self._fit_modules()
        self._positions, self._originals, self._outputs_of_group, self.parked = {}, {}, {}, []

    def _companions(self, name: str, tensor: Tensor) -> list[Companion]:
        return companions(tensor, self._optimizer, self._layers.get(name))

    def _park(self, layer: Layer, where: Positions) -> None:
        """Put aside the weights that the mask keeps and that are not in the network any more."""
        originals = self._originals[layer.name]
        elements = elements_outside(originals["mask"], where)
        if len(elements):
            layer.parked = park(layer, originals, elements, self._optimizer)
            self.parked.append(layer.parked)

    def _unpark(self, parked: Layer) -> None:
        self._layers[parked.name].parked = None
        unpark(parked, self._optimizer)

    def _write_back(self, parked: Layer, key: str, original: Tensor) -> None:
        assert isinstance(parked.positions, ListedPositions)
        own = {each.key: each.tensor for each in companions(parked.weight, self._optimizer, parked)}
        if key in own:
            put_elements(original, own[key], parked.positions.numbers)

    def _fit_modules(self) -> None:
        """Make the sizes that modules state about themselves agree with their tensors."""
        network = unwrapped(self._model)
        for path in _paths(self._positions):
            _fit(network.get_submodule(path), self._outputs_of_group.get(path))


def same_indices(one: Mapping[str, Indices], other: Mapping[str, Indices]) -> bool:
    """Whether two cuts leave the same of each tensor."""
    if one.keys() != other.keys():
        return False
    pairs = [pair for name in one for pair in zip(one[name], other[name], strict=True)]
    return all(a is b if a is None or b is None else torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def _zeros(like: Tensor, shape: torch.Size) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype, device=like.device)


def _settle(layer: Layer, where: Positions) -> None:
    """Tell a layer and its statistics which elements they have now."""
    layer.positions = where
    layer.count()
    for statistic in layer.statistics.values():
        statistic.place = replace(statistic.place, positions=where)
        statistic.loaded()


def _paths(names: Iterable[str]) -> Iterable[str]:
    """The names of the modules that tensors belong to."""
    return dict.fromkeys(name.rpartition(".")[0] for name in names)


def _fit(module: nn.Module, outputs_of_group: int | None) -> None:
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = module.weight.shape[:2]  # without groups
    elif isinstance(module, _ConvNd):
        module.out_channels = module.weight.shape[0]
        if outputs_of_group is not None:
            module.groups = module.out_channels // outputs_of_group
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, _BatchNorm) and module.running_mean is not None:
        module.num_features = len(module.running_mean)

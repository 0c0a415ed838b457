"""Layers as a ranking sees them: with the weights that are parked, in the order of the original network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..layers import Layer
from ..positions import Positions


class RankedLayers:
    """Joins what is left of a layer with its parked weights, so that a ranking finds them where they were.

    A layer without parked weights stays as it is. Of others the tensors are vectors, in the original order: ties are
    broken by it.

    Args:
        layers: the layers of the network.
        parked: the parked weights, each with the name of its layer.
    """

    def __init__(self, layers: Sequence[Layer], parked: Sequence[Layer]) -> None:
        self._layers, self._parked = layers, {layer.name: layer for layer in parked}
        self._orders = {
            layer.name: _merging(layer.positions, self._parked[layer.name].positions).to(layer.mask.device)
            for layer in layers
            if layer.name in self._parked
        }

    @property
    def masks(self) -> list[Tensor]:
        """The mask of each layer."""
        return [self.join(number, lambda layer: layer.mask) for number in range(len(self._layers))]

    @property
    def sizes(self) -> list[int]:
        """The number of weights of each layer in the original network."""
        return [layer.positions.shape.numel() for layer in self._layers]

    def join(self, number: int, tensor_of: Callable[[Layer], Tensor]) -> Tensor:
        """A tensor of a layer with that of its parked weights."""
        layer = self._layers[number]
        if layer.name not in self._parked:
            return tensor_of(layer)
        both = torch.cat([tensor_of(layer).flatten(), tensor_of(self._parked[layer.name])])
        return both[self._orders[layer.name]]

    def split(self, joined: Sequence[Tensor]) -> list[Tensor]:
        """The parts of joined tensors: those of the layers, and then those of the parked weights."""
        parts, parked = [], []
        for layer, tensor in zip(self._layers, joined, strict=True):
            if layer.name in self._parked:
                both = torch.empty_like(tensor)
                both[self._orders[layer.name]] = tensor
                left, aside = both.tensor_split([layer.mask.numel()])
                parts.append(left.view(layer.mask.shape))
                parked.append((layer.name, aside))
            else:
                parts.append(tensor)
        aside_of = dict(parked)
        return [*parts, *(aside_of[name] for name in self._parked)]

    def find_dead(
        self, find: Callable[[Sequence[Layer], Sequence[Tensor]], Mapping[int, Tensor]], masks: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Mark the dead weights of joined masks. Parked weights are dead: nothing reads the channels they feed."""
        parts = self.split(masks)
        dead = dict(find(self._layers, parts[: len(self._layers)]))
        parked = dict(zip(self._parked, parts[len(self._layers) :], strict=True))
        for number, layer in enumerate(self._layers):
            if layer.name in parked and (number in dead or bool(parked[layer.name].any())):
                here = dead.get(number, torch.zeros_like(layer.mask))
                both = torch.cat([here.flatten(), parked[layer.name]])
                dead[number] = both[self._orders[layer.name]]
        return dead


def _merging(left: Positions, parked: Positions) -> Tensor:
    """The order that sorts what is left and what is parked, one after the other, by the number of the element."""
    elements, aside = left.elements().flatten(), parked.elements()
    places = torch.searchsorted(elements, aside) + torch.arange(len(aside))
    is_left = torch.ones(len(elements) + len(aside), dtype=torch.bool)
    is_left[places] = False
    order = torch.empty(len(is_left), dtype=torch.int64)
    order[is_left] = torch.arange(len(elements))
    order[places] = torch.arange(len(elements), len(is_left))
    return order

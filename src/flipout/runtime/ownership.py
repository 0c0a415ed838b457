"""Whether the weights of a pruner are still those of its model and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..layers import Layer


class Ownership:
    """Finds weights that were replaced. It is asked before every step, so it compares identities and no values."""

    def __init__(self, layers: Sequence[Layer], optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._attributes = [(layer, layer.name.rpartition(".")[2]) for layer in layers]
        self._places = {layer.name: (0, 0) for layer in layers}

    def check(self) -> None:
        """Raise an error if a module or the optimizer holds another parameter than the pruner's."""
        for layer, attribute in self._attributes:
            if not _is_weight(layer.module._parameters.get(attribute), layer):
                raise RuntimeError(_replaced(layer.name))
            if not self._is_at(layer, self._places[layer.name]):
                self._places[layer.name] = self._find(layer)

    def check_names(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise an error if the model has another parameter under a name. This also finds replaced modules."""
        for layer, _ in self._attributes:
            if not _is_weight(tensors.get(layer.name), layer):
                raise RuntimeError(_replaced(layer.name))

    def _is_at(self, layer: Layer, place: tuple[int, int]) -> bool:
        group, position = place
        try:
            return self._optimizer.param_groups[group]["params"][position] is layer.weight
        except IndexError:
            return False

    def _find(self, layer: Layer) -> tuple[int, int]:
        for number, group in enumerate(self._optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter is layer.weight:
                    return number, position
        raise RuntimeError(
            f"the optimizer no longer holds {layer.name}, which this pruner prunes: its parameter groups were changed. "
            "Save pruner.state_dict(), call pruner.remove(), and attach a new pruner to the optimizer that trains "
            "this weight, with its state loaded; or leave the weight out with exclude="
        )


def _is_weight(tensor: Tensor | None, layer: Layer) -> bool:
    """Whether a tensor of a model is the weight of a layer, or stands for it: FSDP2 puts the gathered weight into the
    module while it computes, and may leave it there."""
    stands_for_it = layer.part is not None and tensor is not None and tensor.shape == layer.weight.shape
    return tensor is layer.weight or stands_for_it


def _replaced(name: str) -> str:
    return (
        f"{name} was replaced in the model: the pruner and the optimizer hold the old parameter, so the new one is "
        "neither trained nor pruned. Load weights in place, without assign=True and without new nn.Parameter objects. "
        "Or create a new optimizer and a new pruner for the new parameters, and load the old pruner's state_dict() "
        "into it; call remove() on the old one"
    )

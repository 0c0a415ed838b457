"""Whether the weights of a pruner are still those of its model and its optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..host import Host
from ..modules import named_tensors
from ..weights import Weight
from .base import Guard


class Ownership(Guard):
    """Finds weights that were replaced, and gradients that cannot be used.

    It is asked before every step, so it compares identities and no values.
    """

    def __init__(self, weights: Sequence[Weight], optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._attributes = [(weight, weight.name.rpartition(".")[2]) for weight in weights]
        self._places = {weight.name: (0, 0) for weight in weights}

    def before_step(self, pruner: Host) -> None:
        for weight, attribute in self._attributes:
            if not _is_weight(weight.module._parameters.get(attribute), weight):
                raise RuntimeError(_replaced(weight.name))
            if not self._is_at(weight, self._places[weight.name]):
                self._places[weight.name] = self._find(weight)
            if weight.parameter.grad is not None and weight.parameter.grad.layout != torch.strided:
                raise ValueError(f"{weight.name} has a sparse gradient: use sparse=False there, or exclude= it")
        if is_checked(pruner):
            tensors = named_tensors(pruner.model)  # under their names: this also finds replaced modules
            for weight, _ in self._attributes:
                if not _is_weight(tensors.get(weight.name), weight):
                    raise RuntimeError(_replaced(weight.name))

    def _is_at(self, weight: Weight, place: tuple[int, int]) -> bool:
        group, position = place
        try:
            return self._optimizer.param_groups[group]["params"][position] is weight.parameter
        except IndexError:
            return False

    def _find(self, weight: Weight) -> tuple[int, int]:
        for number, group in enumerate(self._optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter is weight.parameter:
                    return number, position
        raise RuntimeError(
            f"the optimizer no longer holds {weight.name}, which this pruner prunes: its parameter groups were "
            "changed. Save pruner.state_dict(), call pruner.remove(), and attach a new pruner to the optimizer that "
            "trains this weight, with its state loaded; or leave the weight out with exclude="
        )


def _is_weight(tensor: Tensor | None, weight: Weight) -> bool:
    """Whether a tensor of a model is the parameter of a weight, or stands for it: FSDP2 puts the gathered weight into
    the module while it computes, and may leave it there."""
    stands_for_it = weight.view.key is not None and tensor is not None and tensor.shape == weight.parameter.shape
    return tensor is weight.parameter or stands_for_it


def is_checked(pruner: Host) -> bool:
    """Whether weights are looked at closely before the next step: the last one, and those with a pruning after them."""
    step, due = pruner.step + 1, pruner.due
    return step == pruner.schedule.steps or (due is not None and due.step <= step)


def _replaced(name: str) -> str:
    return (
        f"{name} was replaced in the model: the pruner and the optimizer hold the old parameter, so the new one is "
        "neither trained nor pruned. Load weights in place, without assign=True and without new nn.Parameter objects. "
        "Or create a new optimizer and a new pruner for the new parameters, and load the old pruner's state_dict() "
        "into it; call remove() on the old one"
    )

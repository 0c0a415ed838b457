"""Whether the weights of a pruner are still those of its model and its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

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
        self._optimizer, self._weights = optimizer, weights
        self._parameters = [weight.parameter for weight in weights]
        self._attributes = [(weight.module._parameters, weight.name.rpartition(".")[2]) for weight in weights]
        self._places = [(0, 0)] * len(weights)

    def before_step(self, pruner: Host) -> None:
        held = [holders.get(attribute) for holders, attribute in self._attributes]
        if not all(map(is_, held, self._parameters)):
            for weight, tensor in zip(self._weights, held, strict=True):
                if not _is_weight(tensor, weight):
                    raise RuntimeError(_replaced(weight.name))
        if not self._in_place():
            self._places = [self._find(weight) for weight in self._weights]
        for weight in self._weights:
            grad = weight.parameter.grad
            if grad is not None and grad.layout is not torch.strided:
                raise ValueError(f"{weight.name} has a sparse gradient: use sparse=False there, or exclude= it")
        if is_checked(pruner):
            tensors = named_tensors(pruner.model)  # under their names: this also finds replaced modules
            for weight in self._weights:
                if not _is_weight(tensors.get(weight.name), weight):
                    raise RuntimeError(_replaced(weight.name))

    def _in_place(self) -> bool:
        """Whether the optimizer holds every parameter where it was found."""
        groups = self._optimizer.param_groups
        try:
            held = [groups[group]["params"][position] for group, position in self._places]
        except IndexError:
            return False
        return all(map(is_, held, self._parameters))

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

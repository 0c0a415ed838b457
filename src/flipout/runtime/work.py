"""What the objects of a pruner work with: its weights, in groups, and everything that acts on them around a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..weights import Weight
from .gradients import Gradients
from .groups import Groups
from .kernels import Kernels
from .noise import GradientNoise


@dataclass(eq=False)
class Work:
    """The weights of a pruner, the optimizer that trains them, and the noise; the groups and the kernels."""

    weights: Sequence[Weight]
    optimizer: torch.optim.Optimizer
    noise: GradientNoise | None
    kernels: Kernels

    def __post_init__(self) -> None:
        self.groups = Groups(self.weights)

    def watch(self, learned: Callable[[Weight], bool]) -> None:
        """Look after the gradients from now on; see `Gradients`."""
        self.gradients = Gradients(self.weights, learned)

    def forget(self) -> None:
        """Tensors were replaced."""
        self.kernels = self.kernels.renewed()
        self.groups.forget()


def weakly(method: Callable[[Weight], bool]) -> Callable[[Weight], bool]:
    """A bound method that does not keep its object alive; False without it."""
    reference = weakref.WeakMethod(method)
    return lambda weight: (call := reference()) is not None and call(weight)

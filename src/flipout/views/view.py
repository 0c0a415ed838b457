"""Views: which elements of an original weight tensor are here, and how numbers about all of it are computed.

Everything a pruner keeps for a weight (mask, statistics, slots of its form) has the elements of the view, as plain
tensors on this process. The core works on these and never asks which kind of view it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from .positions import Positions


class View:
    """The whole tensor is here. `Shard` and `Cut` override what is different for them."""

    key: Hashable | None = None
    """Numbers of weights with the same key are summed over ranks in one exchange. None: no other rank holds more."""

    spread = False
    """Whether other ranks hold elements of the same rows (of everything under one index of the first dimension)."""

    coordinates: tuple[tuple[int, ...], ...] | None = None
    """Which shard this is, in plain numbers: ranks with the same ones hold the same elements."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions

    @property
    def indices(self) -> tuple[Tensor | None, ...]:
        """For each dimension of the parameter, the original indices that are there; None for all of them."""
        return self.positions.indices

    @property
    def size(self) -> int:
        """The number of elements of the original tensor."""
        return self.positions.shape.numel()

    def elements(self) -> Tensor:
        """The number of each element in the original tensor."""
        return self.positions.elements()

    def local(self, parameter: Tensor) -> Tensor:
        """The values that are here, as a plain tensor in the memory of the parameter."""
        return parameter

    def grad(self, parameter: Tensor) -> Tensor | None:
        """The gradients of `local`."""
        return parameter.grad

    def shown(self, local: Tensor) -> Tensor:
        """A tensor of the elements that are here, of the kind of the parameter."""
        return local

    def take(self, tensor: Tensor) -> Tensor:
        """The elements that are here, of a tensor of the original shape."""
        return tensor

    def gather(self, local: Tensor) -> Tensor:
        """The whole tensor, of which every rank gives what it holds."""
        return local

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all ranks that hold other elements."""
        return numbers

    def sum_of_rows(self, numbers: Tensor) -> Tensor:
        """The sum over the ranks that hold other elements of the same rows."""
        return numbers

    def max(self, numbers: Tensor) -> Tensor:
        """The largest over all ranks that hold other elements."""
        return numbers

    def version(self, parameter: Tensor) -> tuple[int, ...]:
        """Changes whenever something changes the values, except for writes through `.data`."""
        return parameter._version, parameter.data_ptr()

    def prepare(self, parameter: Tensor) -> None:
        """Called before a step, when the gradient is complete."""


def whole(parameter: Tensor) -> View:
    """The view of an ordinary weight."""
    return View(Positions.all_of(parameter.shape))


def on_any_rank(condition: bool, views: Sequence[View]) -> bool:
    """Whether a condition holds on any rank that holds elements of these weights."""
    number = torch.tensor(int(condition), device="cpu")
    for view in {view.key: view for view in views if view.key is not None}.values():
        number = view.max(number)
    return bool(number)

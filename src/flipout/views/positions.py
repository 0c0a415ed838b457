"""Where the elements of a tensor stand in the original one: the whole of it, a shard, or what is left of it.

Random numbers and ties go by the place of a weight in the original network. So a shard or a smaller layer computes
exactly its own elements of what the whole tensor would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Positions:
    """The elements of an original tensor that a tensor holds: for each dimension the indices that are there.

    Args:
        shape: the shape of the original tensor.
        indices: for each dimension, an increasing int64 tensor of the original indices; None for all of them.
    """

    shape: torch.Size
    indices: tuple[Tensor | None, ...]

    @classmethod
    def all_of(cls, shape: torch.Size) -> Self:
        """The positions of a whole tensor."""
        return cls(shape, (None,) * len(shape))

    @property
    def whole(self) -> bool:
        """Whether every element is there."""
        return all(index is None for index in self.indices)

    @property
    def held(self) -> torch.Size:
        """The shape of what is here."""
        sizes = zip(self.shape, self.indices, strict=True)
        return torch.Size(size if index is None else len(index) for size, index in sizes)

    def elements(self) -> Tensor:
        """The number of each element in the original tensor, as int64 in the shape of what is here."""
        return self._numbers(range(len(self.shape)))

    def starts(self, device: torch.device | str = "cpu") -> Tensor:
        """The number of the first element of each row, as int32. A row is everything under one index of the first
        dimension; a vector is one row."""
        if len(self.shape) < 2:
            return torch.zeros(1, dtype=torch.int32, device=device)
        return _wrapped(self._numbers([0])).to(device)

    def offsets(self, device: torch.device | str = "cpu") -> Tensor:
        """The number of each element of a row relative to the start of the row, as a flat int32 tensor."""
        return _wrapped(self._numbers(range(int(len(self.shape) > 1), len(self.shape))).flatten()).to(device)

    def _numbers(self, dimensions: range | list[int]) -> Tensor:
        """The numbers of elements, added up over some dimensions."""
        total = torch.zeros((), dtype=torch.int64, device="cpu")
        for dimension in dimensions:
            index = self.indices[dimension]
            if index is None:
                index = torch.arange(self.shape[dimension], device="cpu")
            total = total.unsqueeze(-1) + index * self.shape[dimension + 1 :].numel()
        return total


def _wrapped(numbers: Tensor) -> Tensor:
    """Numbers as int32, modulo 2^32."""
    return ((numbers + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32)

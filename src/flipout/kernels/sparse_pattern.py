"""Which weights of a layer are kept, as the kernels read it."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .geometry import Convolution
from .library import Matrix, kernels


class SparsePattern:
    """The positions of the kept weights of a layer. It never changes.

    Args:
        mask: nonzero where a weight is kept; the shape is that of the weight.
    """

    def __init__(self, mask: Tensor) -> None:
        rows = mask.flatten(1)
        self.shape = mask.shape
        self.outputs, self.inputs = rows.nonzero(as_tuple=True)
        self.positions = self.outputs * rows.shape[1] + self.inputs
        self.starts = _starts(self.outputs, len(rows))
        self._indices: dict[Convolution, Indices] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_indices": {}}  # they are found again from the rest

    def __len__(self) -> int:
        """The number of kept weights."""
        return self.positions.shape[0]

    def values(self, dense: Tensor) -> Tensor | None:
        """The kept values of a dense weight, or None if one of them is not finite.

        Between the rows of an image the kernels multiply weights with zeros, which must give zeros.
        """
        values = torch.empty(len(self))
        return values if kernels().gather(values, dense.detach().contiguous(), self.positions) else None

    def indices(self, convolution: Convolution) -> Indices:
        """The positions for images of one size."""
        if convolution not in self._indices:
            self._indices[convolution] = Indices(self, convolution)
        return self._indices[convolution]


class Indices:
    """The sparse matrix of a layer between the planes of packed images of one size, and its transpose."""

    def __init__(self, pattern: SparsePattern, convolution: Convolution) -> None:
        self._pattern, self._convolution = pattern, convolution
        planes, offsets = self._planes_and_offsets()
        self._offsets = (planes * convolution.input.plane + offsets).int()

    def matrix(self, values: Tensor) -> Matrix:
        return Matrix(self._pattern.starts.data_ptr(), self._offsets.data_ptr(), values.data_ptr())

    def transposed(self, values: Tensor) -> Matrix:
        """The transposed matrix, with values in its order."""
        _, starts, offsets = self._transposed
        return Matrix(starts.data_ptr(), offsets.data_ptr(), values.data_ptr())

    def in_transposed_order(self, values: Tensor) -> Tensor:
        return values[self._transposed[0]]

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The order of the weights, the starts of the rows, and the offsets. Inference needs none of them."""
        planes, offsets = self._planes_and_offsets()
        target, rows = self._convolution.output, self._convolution.channels[0] * math.prod(self._convolution.phases)
        order = torch.argsort(planes, stable=True)
        found = (self._pattern.outputs * target.plane + target.front - offsets)[order]
        return order, _starts(planes[order], rows), found.int()

    def _planes_and_offsets(self) -> tuple[Tensor, Tensor]:
        """The plane of the input that each weight reads, and the offset of its tap."""
        phase, offset = self._convolution.taps
        channel, tap = self._pattern.inputs // len(phase), self._pattern.inputs % len(phase)
        return channel * math.prod(self._convolution.phases) + phase[tap], offset[tap]


def _starts(sorted_rows: Tensor, rows: int) -> Tensor:
    """The first entry of each row, and the number of entries."""
    return torch.searchsorted(sorted_rows, torch.arange(rows + 1)).int()

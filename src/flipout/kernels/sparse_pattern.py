"""Which weights of a layer are kept, as the kernels read it."""

from __future__ import annotations

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
        source, target = convolution.input, convolution.output
        phases = convolution.phases[0] * convolution.phases[1]
        phase, offset = convolution.taps
        channel, tap = pattern.inputs // len(phase), pattern.inputs % len(phase)
        planes, offset = channel * phases + phase[tap], offset[tap]
        self._starts = pattern.starts
        self._offsets = (planes * source.plane + offset).int()
        self._order = torch.argsort(planes, stable=True)
        self._transposed_starts = _starts(planes[self._order], convolution.channels[0] * phases)
        self._transposed_offsets = (pattern.outputs * target.plane + target.front - offset)[self._order].int()

    def matrix(self, values: Tensor) -> Matrix:
        return Matrix(self._starts.data_ptr(), self._offsets.data_ptr(), values.data_ptr())

    def in_transposed_order(self, values: Tensor) -> Tensor:
        return values[self._order]

    def transposed(self, values: Tensor) -> Matrix:
        """The transposed matrix, with values in its order."""
        return Matrix(self._transposed_starts.data_ptr(), self._transposed_offsets.data_ptr(), values.data_ptr())


def _starts(sorted_rows: Tensor, rows: int) -> Tensor:
    """The first entry of each row, and the number of entries."""
    return torch.searchsorted(sorted_rows, torch.arange(rows + 1)).int()

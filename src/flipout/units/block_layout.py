"""Blocks of a weight: rows are outputs, columns are inputs, and the last block of a row or column may be smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..modules import inputs_first, is_stacked
from ..weights import Weight
from .granularity import Granularity, Reduction, accurate, reduce_scores


@dataclass(frozen=True)
class Region:
    """The blocks of one size: a part of the grid of blocks, and the number of weights of each."""

    rows: slice
    columns: slice
    size: int


@dataclass(frozen=True)
class BlockLayout:
    """A weight as a matrix that is cut into blocks of `rows` x `columns`.

    The matrix has a row for each output, and a column for each input and kernel position. So a kernel of 3 x 3 is a
    block of 1 x 9. The matrices of stacked experts lie below each other.

    Args:
        shape: the shape of the weight.
        rows: the rows of a block.
        columns: the columns of a block.
        inputs_first: whether the weight is stored with its inputs first, as in transposed convolutions.
        stacked: whether its first dimension is that of experts.
    """

    shape: tuple[int, ...]
    rows: int
    columns: int
    inputs_first: bool = False
    stacked: bool = False

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of the matrix."""
        shape = self._outputs_first
        return (shape[0] * shape[1], shape[2]) if self.stacked else (shape[0], math.prod(shape[1:]))

    @property
    def _outputs_first(self) -> list[int]:
        """The shape with the outputs before the inputs."""
        one, other = self._axes
        shape = list(self.shape)
        if self.inputs_first:
            shape[one], shape[other] = shape[other], shape[one]
        return shape

    @property
    def _axes(self) -> tuple[int, int]:
        """The axes of outputs and inputs, in the order in which they are stored."""
        return (1, 2) if self.stacked else (0, 1)

    @property
    def grid(self) -> tuple[int, int]:
        """The number of blocks of a column and of a row."""
        height, width = self.sides
        return -(-height // self.rows), -(-width // self.columns)

    def regions(self) -> list[Region]:
        """The parts of the grid with blocks of one size."""
        (height, width), found = self.sides, []
        for first, down, tall in _parts(height, self.rows):
            for left, across, wide in _parts(width, self.columns):
                found.append(Region(slice(first, first + down), slice(left, left + across), tall * wide))
        return found

    def reduced(self, scores: Tensor, how: Reduction) -> Tensor:
        """The score of each block, in the shape of the grid."""
        matrix = accurate(self._matrix(scores))
        if self.rows == self.columns == 1 and how != "norm":
            return matrix
        (height, width), (down, across) = self.sides, self.grid
        missing = down * self.rows - height, across * self.columns - width
        if any(missing):
            matrix = functional.pad(matrix, (0, missing[1], 0, missing[0]))
        blocks = matrix.view(down, self.rows, across, self.columns)
        grid = reduce_scores(blocks, (1, 3), how)
        if how == "mean" and any(missing):  # the zeros that were added count in no mean
            grid[-1] *= self.rows / (self.rows - missing[0])
            grid[:, -1] *= self.columns / (self.columns - missing[1])
        return grid

    def units_of(self, mask: Tensor) -> Tensor:
        """Which blocks have a kept weight, from a mask of the weight."""
        first = self._matrix(mask)[:: self.rows, :: self.columns]  # a block is kept or pruned as a whole
        return first.contiguous()

    def expand(self, grid: Tensor) -> Tensor:
        """Marks of the weights, from marks of the blocks."""
        height, width = self.sides
        down, across = self.grid
        blocks = grid[:, None, :, None].expand(down, self.rows, across, self.columns)
        matrix = blocks.reshape(down * self.rows, across * self.columns)[:height, :width]
        tensor = matrix.reshape(self._outputs_first)
        return tensor.transpose(*self._axes).contiguous() if self.inputs_first else tensor

    def dead_units(self, dead: Tensor, mask: Tensor) -> Tensor:
        """The kept blocks of which every kept weight is dead."""
        return self._any(mask) & ~self._any(mask & ~dead)

    def _any(self, mask: Tensor) -> Tensor:
        return self.reduced(mask.to(torch.float32), "sum") > 0

    def _matrix(self, tensor: Tensor) -> Tensor:
        return (tensor.transpose(*self._axes) if self.inputs_first else tensor).reshape(self.sides)


def layout_of(weight: Weight, granularity: Granularity) -> BlockLayout:
    """The blocks of a weight."""
    shape = tuple(weight.parameter.shape)
    if len(shape) < 2:
        raise ValueError(
            f"{weight.name} has the shape {shape} and no blocks of rows and columns: leave it out with exclude="
        )
    stacked = len(shape) == 3 and is_stacked(weight.module)
    kernel = 1 if stacked else math.prod(shape[2:])
    rows, columns = (1, kernel) if granularity.kind == "kernel" else granularity.numbers
    return BlockLayout(shape, rows, columns, inputs_first(weight.module), stacked)


def _parts(length: int, side: int) -> Sequence[tuple[int, int, int]]:
    """The first block, the number and the side of the whole blocks of a length, and of the smaller last one."""
    whole, rest = divmod(length, side)
    return [(start, number, size) for start, number, size in ((0, whole, side), (whole, 1, rest)) if number and size]

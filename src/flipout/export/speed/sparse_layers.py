"""Linear and convolution layers that compute with their nonzero weights only, on the CPU.

Each keeps the dense weight too: it is what `state_dict` holds, and what runs on images of another size than the one the
layer was made for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional


class SparseMatrix:
    """A matrix by its nonzero elements, row by row. It never changes, so that copies of a layer share it."""

    def __init__(self, matrix: Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's sparse tensors call themselves beta
            rows = matrix.to_sparse_csr()
            # MKL counts in 32 bits, and would convert at every product
            starts, places = rows.crow_indices().int(), rows.col_indices().int()
            self.rows = torch.sparse_csr_tensor(starts, places, rows.values(), rows.shape, check_invariants=True)

    def __deepcopy__(self, _: object) -> Self:
        return self  # torch cannot copy it

    @property
    def columns(self) -> int:
        return self.rows.shape[1]

    def times(self, columns: Tensor) -> Tensor:
        """The product with a dense matrix; that with a vector has a faster way of its own."""
        if columns.shape[1] == 1:
            return (self.rows @ columns.flatten())[:, None]
        return torch.sparse.mm(self.rows, columns.contiguous())  # type: ignore[no-any-return]


class SparseLayer(nn.Module):
    """A layer with a dense weight to save, and something sparse that `build` makes of it."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.register_load_state_dict_post_hook(_rebuild)  # type: ignore[no-untyped-call]

    def build(self) -> None:
        raise NotImplementedError


def _pair(numbers: Sequence[int] | str) -> tuple[int, int]:
    first, second = map(int, numbers)
    return first, second


def _rebuild(layer: nn.Module, _: object) -> None:
    if isinstance(layer, SparseLayer):
        layer.build()


class SparseLinear(SparseLayer):
    """`y = W x + b` as a product with a sparse matrix."""

    def __init__(self, layer: nn.Linear, example: Tensor) -> None:
        super().__init__(layer)
        self.build()

    def build(self) -> None:
        self.matrix = SparseMatrix(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):
            return functional.linear(x, self.weight, self.bias)
        out = self.matrix.times(rows.t()).t()
        if self.bias is not None:
            out = out + self.bias
        return out.reshape(*x.shape[:-1], -1)


class SparseConvolution(SparseLayer):
    """A convolution of images of one size."""

    def __init__(self, layer: nn.Conv2d, example: Tensor) -> None:
        super().__init__(layer)
        self.stride, self.padding, self.dilation = map(_pair, (layer.stride, layer.padding, layer.dilation))
        self.image, self.out = _pair(example.shape[-2:]), _pair(layer(example[:1]).shape[-2:])
        self.build()

    def forward(self, x: Tensor) -> Tensor:
        if _pair(x.shape[-2:]) != self.image or not len(x):
            return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        out = self.sparse(x).view(len(x), -1, *self.out)
        return out if self.bias is None else out.add_(self.bias[:, None, None])

    def sparse(self, x: Tensor) -> Tensor:
        """The outputs without the bias, as a matrix for each image or flat."""
        raise NotImplementedError

    def taps(self) -> Tensor:
        """The (input channel, row, column) of the kernel that any output reads, one to a row."""
        return (self.weight != 0).any(0).nonzero()

    def padded(self, x: Tensor) -> Tensor:
        height, width = self.padding
        return functional.pad(x, (width, width, height, height)) if height or width else x


class GatheredConvolution(SparseConvolution):
    """Copies what each tap reads into a row, by one table of positions, and multiplies with a sparse matrix."""

    def build(self) -> None:
        channel, row, column = self.taps().unbind(1)
        self.matrix = SparseMatrix(self.weight[:, channel, row, column])
        height, width = (side + 2 * around for side, around in zip(self.image, self.padding, strict=True))
        down, across = (step * torch.arange(count) for step, count in zip(self.stride, self.out, strict=True))
        first = channel * height * width + row * self.dilation[0] * width + column * self.dilation[1]
        self.positions = (first[:, None, None] + down[:, None] * width + across).flatten()

    def sparse(self, x: Tensor) -> Tensor:
        padded = self.padded(x).flatten(1)
        taps, places = self.matrix.columns, math.prod(self.out)
        return torch.stack([self.matrix.times(each[self.positions].view(taps, places)) for each in padded])


class SlicedConvolution(SparseConvolution):
    """The same, but for each place in the kernel a slice of the image, of the channels that are read there."""

    def build(self) -> None:
        taps = self.taps()
        places = torch.unique(taps[:, 1:], dim=0).tolist()
        self.slices, order = [], []
        for row, column in places:
            here = (taps[:, 1] == row) & (taps[:, 2] == column)
            down, across = (
                slice(at * spread, at * spread + (count - 1) * step + 1, step)
                for at, spread, count, step in zip((row, column), self.dilation, self.out, self.stride, strict=True)
            )
            self.slices.append((down, across, taps[here, 0]))
            order.append(taps[here])
        channel, row, column = torch.cat(order).unbind(1) if order else taps.unbind(1)
        self.matrix = SparseMatrix(self.weight[:, channel, row, column])

    def sparse(self, x: Tensor) -> Tensor:
        return torch.stack([self._one(each) for each in self.padded(x)])

    def _one(self, image: Tensor) -> Tensor:
        rows = image.new_empty(self.matrix.columns, *self.out)
        start = 0
        for down, across, channels in self.slices:
            end = start + len(channels)
            torch.index_select(image[:, down, across], 0, channels, out=rows[start:end])
            start = end
        return self.matrix.times(rows.flatten(1))


class MatrixConvolution(SparseConvolution):
    """One sparse matrix from all pixels of an image to all outputs; for small images."""

    def build(self) -> None:
        output, channel, row, column = self.weight.nonzero(as_tuple=True)
        values = self.weight[output, channel, row, column]
        (height, width), (out_height, out_width) = self.image, self.out
        y, x = torch.arange(out_height)[:, None], torch.arange(out_width)[None, :]
        down = (y * self.stride[0] - self.padding[0]) + (row * self.dilation[0])[:, None, None]
        across = (x * self.stride[1] - self.padding[1]) + (column * self.dilation[1])[:, None, None]
        inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
        into = (output[:, None, None] * out_height + y) * out_width + x
        of = (channel[:, None, None] * height + down) * width + across
        places = torch.stack([into[inside], of[inside]])
        size = (self.weight.shape[0] * out_height * out_width, self.weight.shape[1] * height * width)
        self.matrix = SparseMatrix(
            torch.sparse_coo_tensor(
                places, values[:, None, None].expand_as(inside)[inside], size, check_invariants=True
            )
        )

    def sparse(self, x: Tensor) -> Tensor:
        return self.matrix.times(x.flatten(1).t()).t().contiguous()


Maker = Callable[[nn.Conv2d, Tensor], SparseConvolution]
CONVOLUTIONS: dict[str, Maker] = {
    "gathered taps": GatheredConvolution,
    "sliced taps": SlicedConvolution,
    "sparse matrix": MatrixConvolution,
}
MOST_ENTRIES = 1 << 21
"""Of the one matrix from pixels to outputs: more are slower than anything else."""


@torch.no_grad()
def alternatives(layer: nn.Module, example: Tensor) -> dict[str, SparseLayer]:
    """The sparse layers that can take the place of one, by name."""
    if isinstance(layer, nn.Linear):
        return {"sparse product": SparseLinear(layer, example)}
    if not isinstance(layer, nn.Conv2d) or not _simple(layer) or example.ndim != 4:
        return {}
    wide = int(layer.weight.count_nonzero()) * layer(example[:1])[0, 0].numel() > MOST_ENTRIES
    return {
        name: make(layer, example) for name, make in CONVOLUTIONS.items() if not (make is MatrixConvolution and wide)
    }


def _simple(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

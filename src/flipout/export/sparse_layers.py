"""Linear and convolution layers that compute with their nonzero weights only, on the CPU.

Each layer keeps its dense weight too: for `state_dict`, and for images of another size than it was built for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_SIDES = (64, 32, 16, 8, 4)
"""The sides of square blocks that are looked for, the largest first."""
DENSE_BLOCKS = 0.9
"""The share of the weights in nonzero blocks that must not be zero."""


class SparseMatrix:
    """A sparse matrix in CSR format, or in BSR format with square blocks. It never changes, so copies share it."""

    def __init__(self, matrix: Tensor, side: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that sparse tensors are in beta
            if side is not None:
                self.matrix = matrix.to_sparse_bsr((side, side))
                return
            csr = matrix.to_sparse_csr()
            # MKL uses 32-bit indices, and would convert them for every product
            starts, columns = csr.crow_indices().int(), csr.col_indices().int()
            self.matrix = torch.sparse_csr_tensor(starts, columns, csr.values(), csr.shape, check_invariants=True)

    def __deepcopy__(self, _: object) -> Self:
        return self  # torch cannot copy sparse CSR tensors

    @property
    def columns(self) -> int:
        return self.matrix.shape[1]

    def times(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix; the product with a vector is faster and has its own branch."""
        if dense.shape[1] == 1 and self.matrix.layout == torch.sparse_csr:
            return (self.matrix @ dense.flatten())[:, None]
        return torch.sparse.mm(self.matrix, dense.contiguous())  # type: ignore[no-any-return]


class SparseLayer(nn.Module):
    """A layer with a dense weight to save, and a sparse form that `build` computes from it."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.register_load_state_dict_post_hook(_rebuild)  # type: ignore[no-untyped-call]

    def build(self) -> None:
        """Compute the sparse form from the dense weight."""
        raise NotImplementedError


def _pair(numbers: Sequence[int] | str) -> tuple[int, int]:
    first, second = map(int, numbers)
    return first, second


def _rebuild(layer: nn.Module, _: object) -> None:
    if isinstance(layer, SparseLayer):
        layer.build()


class SparseLinear(SparseLayer):
    """`y = W x + b` as a product with a sparse matrix, in blocks if their side is given."""

    def __init__(self, layer: nn.Linear, side: int | None = None) -> None:
        super().__init__(layer)
        self.side = side
        self.build()

    def build(self) -> None:
        self.matrix = SparseMatrix(self.weight, self.side)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):
            return functional.linear(x, self.weight, self.bias)
        out = self.matrix.times(rows.t()).t()
        if self.bias is not None:
            out = out + self.bias
        return out.reshape(*x.shape[:-1], -1)


def block_side(weight: Tensor) -> int | None:
    """The side of the largest square blocks that the zeros of a matrix come in, or None if they are scattered.

    MKL multiplies with square blocks only. A block counts as dense if few of its weights are zeros.
    """
    for side in BLOCK_SIDES:
        if any(length % side for length in weight.shape):
            continue
        numbers = (weight != 0).view(weight.shape[0] // side, side, -1, side).sum((1, 3))
        stored = int(numbers.count_nonzero()) * side * side
        if stored and int(numbers.sum()) >= DENSE_BLOCKS * stored:
            return side
    return None


class SparseConvolution(SparseLayer):
    """A convolution that is sparse for images of one size, and dense for all others."""

    def __init__(self, layer: nn.Conv2d, example: Tensor) -> None:
        super().__init__(layer)
        self.stride, self.padding, self.dilation = map(_pair, (layer.stride, layer.padding, layer.dilation))
        self.image, self.out = _pair(example.shape[-2:]), _pair(layer(example[:1]).shape[-2:])
        self.build()

    def forward(self, x: Tensor) -> Tensor:
        if _pair(x.shape[-2:]) != self.image or not len(x):
            return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        out = self.sparse_product(x).view(len(x), -1, *self.out)
        return out if self.bias is None else out.add_(self.bias[:, None, None])

    def sparse_product(self, x: Tensor) -> Tensor:
        """Return the outputs without the bias, as a matrix or a vector for each image."""
        raise NotImplementedError

    def taps(self) -> Tensor:
        """Return the (input channel, row, column) of the kernel that any output reads, one per row."""
        return (self.weight != 0).any(0).nonzero()

    def padded(self, x: Tensor) -> Tensor:
        height, width = self.padding
        return functional.pad(x, (width, width, height, height)) if height or width else x


class SlicedConvolution(SparseConvolution):
    """Copies a slice of the channels that are read at each kernel position, and multiplies with a sparse matrix."""

    def build(self) -> None:
        taps = self.taps()
        kernel_positions = torch.unique(taps[:, 1:], dim=0).tolist()
        self.slices, order = [], []
        for row, column in kernel_positions:
            here = (taps[:, 1] == row) & (taps[:, 2] == column)
            down, across = (
                slice(at * spread, at * spread + (count - 1) * step + 1, step)
                for at, spread, count, step in zip((row, column), self.dilation, self.out, self.stride, strict=True)
            )
            self.slices.append((down, across, taps[here, 0]))
            order.append(taps[here])
        channel, row, column = torch.cat(order).unbind(1) if order else taps.unbind(1)
        self.matrix = SparseMatrix(self.weight[:, channel, row, column])

    def sparse_product(self, x: Tensor) -> Tensor:
        return torch.stack([self._one_image(each) for each in self.padded(x)])

    def _one_image(self, image: Tensor) -> Tensor:
        rows = image.new_empty(self.matrix.columns, *self.out)
        start = 0
        for down, across, channels in self.slices:
            end = start + len(channels)
            torch.index_select(image[:, down, across], 0, channels, out=rows[start:end])
            start = end
        return self.matrix.times(rows.flatten(1))


class MatrixConvolution(SparseConvolution):
    """One sparse matrix from all pixels of an image to all outputs, for small images."""

    def build(self) -> None:
        output, channel, row, column = self.weight.nonzero(as_tuple=True)
        values = self.weight[output, channel, row, column]
        (height, width), (out_height, out_width) = self.image, self.out
        y, x = torch.arange(out_height)[:, None], torch.arange(out_width)[None, :]
        down = (y * self.stride[0] - self.padding[0]) + (row * self.dilation[0])[:, None, None]
        across = (x * self.stride[1] - self.padding[1]) + (column * self.dilation[1])[:, None, None]
        inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
        target = (output[:, None, None] * out_height + y) * out_width + x
        source = (channel[:, None, None] * height + down) * width + across
        indices = torch.stack([target[inside], source[inside]])
        size = (self.weight.shape[0] * out_height * out_width, self.weight.shape[1] * height * width)
        self.matrix = SparseMatrix(
            torch.sparse_coo_tensor(
                indices, values[:, None, None].expand_as(inside)[inside], size, check_invariants=True
            )
        )

    def sparse_product(self, x: Tensor) -> Tensor:
        return self.matrix.times(x.flatten(1).t()).t().contiguous()


SPARSE_CONVOLUTIONS: dict[str, Callable[[nn.Conv2d, Tensor], SparseConvolution]] = {
    "sliced taps": SlicedConvolution,
    "sparse matrix": MatrixConvolution,
}
MAX_MATRIX_ENTRIES = 1 << 21
"""A matrix from pixels to outputs with more entries is slower than all other forms."""


@torch.no_grad()
def sparse_forms(layer: nn.Module, example: Tensor) -> dict[str, SparseLayer]:
    """Return the sparse layers that can replace a layer, by name."""
    if isinstance(layer, nn.Linear):
        side = block_side(layer.weight)
        blocks = {} if side is None else {f"blocks of {side} x {side}": SparseLinear(layer, side)}
        return {"sparse product": SparseLinear(layer), **blocks}
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or example.ndim != 4:
        return {}
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return {}
    entries = int(layer.weight.count_nonzero()) * layer(example[:1])[0, 0].numel()
    return {
        name: form(layer, example)
        for name, form in SPARSE_CONVOLUTIONS.items()
        if form is not MatrixConvolution or entries <= MAX_MATRIX_ENTRIES
    }

"""A layer as a matrix: its weight, its inputs as columns, and the second moments of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..modules import inputs_first, is_matrix_module, is_stacked
from ..numerics import wide
from ..problems import CoverageWarning, warn
from ..weights import Weight
from .solvers import InverseRoot

PIECE = 1 << 23
"""Inputs are unfolded in pieces of about this many numbers."""
SAMPLES = 128
"""Of a layer with more columns than this many times its inputs, such as an early convolution, a random part is used:
neighbouring places of an image tell almost the same."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight, and the modules that compute with it.

    As a matrix it has the shape (groups, outputs, inputs); the inputs of a convolution are those of one kernel
    position after the other, channel by channel. The outputs of a transposed convolution are counted before the
    overlapping ones are added up. The experts of a stack are groups.

    Args:
        weight: the weight.
        modules: the modules that are called with its inputs; several if it is shared, and none if it has other inputs
            than its module, as those of a recurrent layer or an attention.
        chunk: the most inputs that one Hessian spans; with more, it is block-diagonal.
        multiple: chunks hold a multiple of this many channels.
    """

    weight: Weight
    modules: tuple[nn.Module, ...]
    chunk: int
    multiple: int = 1

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def module(self) -> nn.Module:
        return self.modules[0] if self.modules else self.weight.module

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias, if it is of this weight alone, with one number for each output."""
        if len(self.modules) != 1 or isinstance(self.module, _ConvTransposeNd):
            return None
        bias: nn.Parameter | None = getattr(self.module, "bias", None)
        return bias

    @property
    def positions(self) -> int:
        """The inputs of one channel."""
        is_plain = isinstance(self.module, _ConvNd) and not isinstance(self.module, _ConvTransposeNd)
        return self.weight.parameter.shape[2:].numel() if is_plain else 1

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the matrix."""
        groups, outputs, inputs = self.matrix(self.weight.parameter.detach()).shape
        return groups, outputs, inputs

    @cached_property
    def chunks(self) -> list[slice]:
        """The inputs of each Hessian."""
        inputs, unit = self.shape[2], self.positions * self.multiple
        size = max(unit, self.chunk // unit * unit)
        return [slice(start, min(start + size, inputs)) for start in range(0, inputs, size)]

    @property
    def hessian_bytes(self) -> int:
        sizes = [int(chunk.stop - chunk.start) + 1 for chunk in self.chunks]
        return 4 * self.shape[0] * sum(size * size for size in sizes)

    def matrix(self, tensor: Tensor) -> Tensor:
        """A tensor of the weight's shape as a matrix."""
        module = self.module
        if isinstance(module, _ConvTransposeNd):
            return tensor.reshape(module.groups, tensor.shape[0] // module.groups, -1).mT
        if isinstance(module, _ConvNd):
            return tensor.reshape(module.groups, tensor.shape[0] // module.groups, -1)
        turned = tensor.mT if inputs_first(module) else tensor
        return turned if is_stacked(module) else turned.flatten(1).unsqueeze(0)

    def tensor(self, matrix: Tensor) -> Tensor:
        """A matrix as a tensor of the weight's shape."""
        shape = self.weight.parameter.shape
        if isinstance(self.module, _ConvTransposeNd):
            return matrix.mT.reshape(shape)
        if isinstance(self.module, _ConvNd):
            return matrix.reshape(shape)
        return matrix.mT.reshape(shape).contiguous() if inputs_first(self.module) else matrix.reshape(shape)

    def spread(self, values: Tensor) -> Tensor:
        """A number for each group and input, as a tensor of the weight's shape."""
        return self.tensor(values[:, None].expand(self.shape))

    def columns(self, module: nn.Module, inputs: Tensor, most: int, random: torch.Generator) -> Iterator[Tensor]:
        """The inputs of a call as matrices (groups, inputs, number), a piece of the batch at a time.

        Of more than `most` columns, a random part is taken: of a convolution some places, the same ones for all images.
        """
        groups, _, size = self.shape
        if not isinstance(module, _ConvNd):
            rows = inputs.reshape(-1, size)
            if len(rows) > most:
                rows = rows[_some(len(rows), most, random).to(rows.device)]
            for piece in rows.split(max(1, PIECE // size)):  # type: ignore[no-untyped-call]
                yield piece.t().unsqueeze(0)
            return
        dims = len(module.kernel_size)
        images = inputs if inputs.ndim == dims + 2 else inputs.unsqueeze(0)
        places = _windows(images[:1], module).shape[-dims:].numel()
        per_image = min(places, -(-most // max(1, len(images))))
        for piece in images.split(max(1, PIECE // max(1, size * groups * per_image))):  # type: ignore[no-untyped-call]
            yield _at_places(_windows(piece, module), dims, per_image, random).reshape(groups, size, -1)


def _windows(images: Tensor, module: _ConvNd) -> Tensor:
    """What the kernel of a convolution sees at each place: (channels, *kernel, number, *places). It is a view.

    A transposed convolution sees one place at a time.
    """
    dims = len(module.kernel_size)
    if isinstance(module, _ConvTransposeNd):
        return images.transpose(0, 1)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    windows = functional.pad(images, module._reversed_padding_repeated_twice, mode)
    for axis in range(dims):
        size, dilation = module.kernel_size[axis], module.dilation[axis]
        windows = windows.unfold(axis + 2, (size - 1) * dilation + 1, module.stride[axis])[..., ::dilation]
    return windows.permute(1, *range(dims + 2, 2 * dims + 2), 0, *range(2, dims + 2))


def _at_places(windows: Tensor, dims: int, most: int, random: torch.Generator) -> Tensor:
    """The windows of some places, if there are more than `most`."""
    sizes = windows.shape[-dims:]
    if sizes.numel() <= most:
        return windows
    chosen = _some(sizes.numel(), most, random).to(windows.device)
    where: list[Any] = []
    for size in reversed(sizes):
        where.insert(0, chosen % size)
        chosen = chosen // size
    return windows[(..., *where)]  # an index of the view: all windows at once would be large


def _some(number: int, most: int, random: torch.Generator) -> Tensor:
    return torch.randperm(number, generator=random)[:most]


def layers_of(network: nn.Module, weights: Sequence[Weight], chunk: int, multiple: int = 1) -> list[Layer]:
    """The layers of some weights."""
    called: dict[int, list[nn.Module]] = {}
    silent = {module.out_proj for module in network.modules() if isinstance(module, nn.MultiheadAttention)}
    for module in network.modules():
        if is_matrix_module(module) and module not in silent:
            called.setdefault(id(module._parameters.get("weight")), []).append(module)
    if sharded := [weight.name for weight in weights if weight.view.key is not None]:
        raise ValueError(f"{sharded[0]} is sharded, so its inputs cannot be observed: leave it out with exclude=")
    if vectors := [weight.name for weight in weights if weight.parameter.ndim < 2]:
        raise ValueError(f"{vectors[0]} is a vector, which no layer multiplies with: leave it out with exclude=")
    return [Layer(each, tuple(called.get(id(each.parameter), ())), chunk, multiple) for each in weights]


def with_inputs(layers: Sequence[Layer], method: str, *, chosen: bool) -> list[Layer]:
    """The layers whose inputs can be observed. Others are left out with a warning, or refused if they were chosen."""
    others = ", ".join(layer.name for layer in layers if not layer.modules)
    text = (
        f"{method} needs the inputs of a weight, and those of recurrent modules, nn.MultiheadAttention and stacked "
        f"experts cannot be observed: {others}"
    )
    found = [layer for layer in layers if layer.modules]
    if others and (chosen or not found):
        raise ValueError(f"{text}. Leave them out with exclude=, or use method='magnitude'")
    if others:
        warn(f"{text}. They are left as they are; prune them with method='magnitude' and include=", CoverageWarning)
    return found


class Moments:
    """The second moments of the inputs of a layer, added up over batches.

    If the layer has a bias, a further input that is always 1 stands for it. It is the last one.

    Args:
        layer: the layer.
        calls: about how often it will be called.
    """

    def __init__(self, layer: Layer, calls: int = 1) -> None:
        self.layer, self.number = layer, 0
        self._most = -(-SAMPLES * layer.shape[2] // calls)
        self._random = torch.Generator().manual_seed(layer.weight.number)
        self.has_bias = layer.bias is not None
        sizes = [chunk.stop - chunk.start for chunk in layer.chunks]
        sizes[-1] += self.has_bias
        device = layer.weight.parameter.device
        dtype = torch.float64 if layer.weight.parameter.dtype == torch.float64 else torch.float32
        self.sums = [torch.zeros(layer.shape[0], size, size, dtype=dtype, device=device) for size in sizes]
        self._roots: list[InverseRoot] = []

    def add(self, module: nn.Module, inputs: Tensor) -> None:
        for columns in self.layer.columns(module, wide(inputs.detach()), self._most, self._random):
            self.number += columns.shape[-1]
            for number, (chunk, total) in enumerate(zip(self.layer.chunks, self.sums, strict=True)):
                own = columns[:, chunk]
                if self.has_bias and number == len(self.sums) - 1:
                    own = torch.cat([own, torch.ones_like(own[:, :1])], 1)
                total.baddbmm_(own, own.mT)

    @cached_property
    def hessians(self) -> list[Tensor]:
        """`2/n X X^T` of each chunk of inputs; the last one with the input of the bias."""
        if not self.number:
            raise ValueError(
                f"no calibration batch reaches {self.layer.name}, so its inputs are not known: leave it out with "
                "exclude=, or use batches that reach it"
            )
        scaled = [total.mul_(2 / self.number) for total in self.sums]  # in place: there is one of them in memory
        # An input that is not finite is not on the diagonal either. A check of all elements takes twice their memory.
        if not all(bool(torch.isfinite(each.diagonal(dim1=1, dim2=2)).all()) for each in scaled):
            raise FloatingPointError(
                f"the inputs of {self.layer.name} are NaN or infinite for a calibration batch; check the batches and "
                "the weights of the layers before it"
            )
        return scaled

    def roots(self, damping: float, orders: Sequence[Tensor] = ()) -> list[InverseRoot]:
        """The roots of the inverse Hessians, in whose memory they are: `hessians` cannot be used any more.

        With `orders`, they are those of the inputs of each chunk in another order.
        """
        if not self._roots:
            hessians = self.hessians
            if orders:
                hessians = [each[:, order][:, :, order] for each, order in zip(hessians, orders, strict=True)]
            self._roots = [InverseRoot(each, damping) for each in hessians]
        return self._roots

    def diagonal(self) -> Tensor:
        """The diagonal of the Hessian, (groups, inputs), without the bias."""
        whole = torch.cat([each.diagonal(dim1=1, dim2=2) for each in self.hessians], 1)
        return whole[:, : self.layer.shape[2]]

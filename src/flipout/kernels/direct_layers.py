"""Layers for inference that compute with their nonzero weights only."""

from __future__ import annotations

import copy
from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .geometry import Convolution
from .library import KernelCall, Size, has_kernels, kernels, size_of
from .sparse_convolution import threads_for
from .sparse_modules import as_images, can_be_sparse, convolution_of, from_images
from .sparse_operation import sparse_convolution
from .sparse_pattern import SparsePattern

ATTRIBUTE = "_direct_computation"


@dataclass(frozen=True)
class Prepared:
    """A call for inputs of one shape: all but the addresses of its tensors."""

    call: KernelCall
    scratch: int
    output: tuple[int, ...]
    kept: tuple[Any, ...]
    """What the addresses in the call belong to."""


class DirectComputation:
    """The kept weights of a layer. They never change, so copies of the layer share them.

    Args:
        clip: whether negative outputs become 0: the ReLU after the layer is part of it.
    """

    def __init__(self, layer: nn.Module, *, clip: bool = False) -> None:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        self.clip = clip
        self.pattern = SparsePattern(weight.detach() != 0)
        self.values = self.pattern.values(weight)
        self.bias = bias.detach().clone() if isinstance(bias, Tensor) else None
        self._prepared: dict[tuple[int, ...], Prepared] = {}

    def __deepcopy__(self, _: object) -> DirectComputation:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": {}}  # addresses are those of this process

    def output(self, layer: nn.Module, x: Tensor, addend: Tensor | None) -> Tensor | None:
        """The output of a layer, or None if it has to be computed densely."""
        if self.values is None or x.dtype != torch.float32 or x.device.type != "cpu" or not x.numel():
            return None
        images = as_images(layer, x)
        if images is None or images.shape[1] != self.pattern.shape[1]:
            return None  # torch raises the error
        images = images.contiguous()
        key = (*images.shape, torch.get_num_threads())
        prepared = self._prepared.get(key)
        if prepared is None:
            convolution = convolution_of(layer, (images.shape[2], images.shape[3]))
            if not convolution.is_possible:
                return None
            prepared = self._prepared[key] = self._prepare(convolution, len(images))
        output = images.new_empty(prepared.output)
        call = KernelCall.from_buffer_copy(prepared.call)
        call.input, call.output = images.data_ptr(), output.data_ptr()
        if addend is not None:
            addend = addend.expand_as(from_images(layer, x, output)).contiguous()
            call.addend = addend.data_ptr()
        kernels().run(call, prepared.scratch)
        return from_images(layer, x, output)

    def _prepare(self, convolution: Convolution, images: int) -> Prepared:
        size: Size = size_of(convolution, images, threads_for(convolution, images, len(self.pattern)))
        indices = self.pattern.indices(convolution)
        assert self.values is not None
        call = KernelCall(
            size=addressof(size),
            forward=indices.matrix(self.values),
            bias=None if self.bias is None else self.bias.data_ptr(),
            output=1,  # asked for
            clip=self.clip,
        )
        output = images, convolution.channels[1], *convolution.out
        return Prepared(call, kernels().scratch_size(call), output, (size, indices))


class DirectLayer(nn.Module):
    """What the classes share. The dense weight stays, for `state_dict` and for inputs that the kernels cannot take."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = next(dense for dense, direct in DIRECT_CLASSES.items() if direct is type(self))
        return _new_layer, (kind,), self.__dict__

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:  # noqa: A002
        computation: DirectComputation = self.__dict__[ATTRIBUTE]
        if torch.compiler.is_compiling():
            return self._operation(computation, input, addend)
        output = computation.output(self, input, addend)
        if output is None:
            output = super().forward(input)
            output = output if addend is None else output + addend
            output = functional.relu(output) if computation.clip else output
        return output

    def _operation(self, computation: DirectComputation, x: Tensor, addend: Tensor | None) -> Tensor:
        """The same as an operation that `torch.export` can record."""
        images = as_images(self, x)
        assert images is not None
        assert isinstance(self.weight, Tensor)
        convolution = convolution_of(self, (images.shape[2], images.shape[3]))
        each = convolution.kernel, convolution.stride, convolution.before, convolution.after, convolution.dilation
        settings = [number for pair in each for number in pair]
        addend = None if addend is None else as_images(self, addend)
        output = sparse_convolution(images, self.weight, computation.bias, addend, computation.clip, settings)
        return from_images(self, x, output)


class DirectLinear(DirectLayer, nn.Linear):
    __module__ = nn.Linear.__module__  # so that torch.fx takes it as a whole


class DirectConv1d(DirectLayer, nn.Conv1d):
    __module__ = nn.Conv1d.__module__


class DirectConv2d(DirectLayer, nn.Conv2d):
    __module__ = nn.Conv2d.__module__


DIRECT_CLASSES: dict[type, type] = {nn.Linear: DirectLinear, nn.Conv1d: DirectConv1d, nn.Conv2d: DirectConv2d}


def _new_layer(kind: type) -> Any:
    """A direct layer without its state. Pickle cannot find the classes, which say that they are torch's."""
    return object.__new__(DIRECT_CLASSES[kind])


def direct_layer(layer: nn.Module) -> nn.Module | None:
    """A layer with the same outputs that computes with its nonzero weights, or None if the kernels cannot."""
    if not can_be_sparse(layer) or not has_kernels():
        return None
    weight = layer.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    direct = copy.deepcopy(layer).requires_grad_(False)
    direct.__class__ = DIRECT_CLASSES[type(layer)]
    direct.__dict__[ATTRIBUTE] = DirectComputation(direct)
    direct.register_load_state_dict_post_hook(_read_weights)  # type: ignore[no-untyped-call]
    return direct


def with_clip(layer: nn.Module) -> None:
    """Make the ReLU after a layer a part of it."""
    layer.__dict__[ATTRIBUTE] = DirectComputation(layer, clip=True)


def _read_weights(layer: nn.Module, _: object) -> None:
    layer.__dict__[ATTRIBUTE] = DirectComputation(layer, clip=layer.__dict__[ATTRIBUTE].clip)

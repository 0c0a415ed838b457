"""Subclasses of torch's modules: layers that compute with the kept weights, and the batch norms between them.

The class of a module is exchanged. It stays the same object, with the same parameters and hooks. A copy or a pickle of
it is an ordinary module.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .batch_norms import BatchNormComputation
from .geometry import Convolution, Pair
from .sparse_function import SparseConvolutionFunction
from .sparse_pattern import SparsePattern

ATTRIBUTE = "_sparse_computation"
"""The attribute of a module that holds how it computes. It is in no `state_dict`."""


@dataclass(frozen=True)
class Seen:
    """The first call of a layer in training: its geometry, the images of a batch, and whether they need gradients."""

    convolution: Convolution
    images: int
    gradient: bool
    channels_last: bool


@dataclass(eq=False)
class SparseComputation:
    """How a layer computes: sparse, if there is a pattern.

    Args:
        report: called with the reason if a layer with a pattern has to compute densely.
    """

    report: Callable[[str], None]
    pattern: SparsePattern | None = None
    all_gradients: bool = False
    seen: Seen | None = None
    _convolutions: dict[tuple[int, ...], Convolution] = field(default_factory=dict)

    def output(self, layer: nn.Module, x: Tensor) -> Tensor | None:
        """The output of a layer, or None if it has to be computed densely."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return None
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        if torch._C._are_functorch_transforms_active():
            return None  # torch.func, which also asks for second derivatives
        if type(x) is not Tensor or x.layout != torch.strided:
            return None
        if x.device.type != "cpu":
            self.report(f"inputs on {x.device}, and the kernels run on the CPU")
            return None
        images = as_images(layer, x)
        if images is None or images.shape[1] != weight.shape[1]:
            return None  # torch raises the error
        convolution = self._convolution(layer, images, weight)
        if self.seen is None and weight.requires_grad and torch.is_grad_enabled() and len(images):
            self.seen = Seen(convolution, len(images), images.requires_grad, _is_channels_last(images))
        if self.pattern is None or self.pattern.shape != weight.shape or not convolution.is_possible:
            return None
        if torch.is_autocast_enabled("cpu"):
            self.report("torch.autocast is on, and the kernels compute in float32")
            return None
        if x.dtype != torch.float32 or weight.dtype != torch.float32 or weight.device.type != "cpu":
            self.report(f"inputs of {x.dtype} and weights of {weight.dtype} on {weight.device}, not float32 on the CPU")
            return None
        if (values := self.pattern.values(weight)) is None:
            return None
        result = SparseConvolutionFunction.apply(  # type: ignore[no-untyped-call]
            *(images, weight, bias, values, self.pattern, convolution, self.all_gradients)
        )
        return from_images(layer, x, result)

    def _convolution(self, layer: nn.Module, images: Tensor, weight: Tensor) -> Convolution:
        key = (*images.shape[1:], *weight.shape)
        if key not in self._convolutions:
            self._convolutions[key] = convolution_of(layer, (images.shape[2], images.shape[3]))
        return self._convolutions[key]


def as_images(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The input of a layer as (images, channels, height, width); None if it has no such form."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1], 1, 1) if x.ndim else None
    axes = 2 if isinstance(layer, nn.Conv2d) else 1
    if x.ndim not in (axes + 1, axes + 2):
        return None
    batch = x if x.ndim == axes + 2 else x[None]
    return batch if axes == 2 else batch[:, :, None]


def from_images(layer: nn.Module, x: Tensor, output: Tensor) -> Tensor:
    """The output of a layer in the form that belongs to its input."""
    if isinstance(layer, nn.Linear):
        return output.view(*x.shape[:-1], output.shape[1])
    if not isinstance(layer, nn.Conv2d):
        output = output[:, :, 0]
    return output if x.ndim == output.ndim else output[0]


def convolution_of(layer: nn.Module, image: Pair) -> Convolution:
    """The geometry of a layer for images of one size."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    channels = weight.shape[1], weight.shape[0]
    if isinstance(layer, nn.Linear):
        return Convolution(channels, image)
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
    kernel, stride, dilation = (_pair(each) for each in (weight.shape[2:], layer.stride, layer.dilation))
    if layer.padding == "same":
        reach = [distance * (size - 1) for distance, size in zip(dilation, kernel, strict=True)]
        before = reach[0] // 2, reach[1] // 2
        after = reach[0] - before[0], reach[1] - before[1]
    elif layer.padding == "valid":
        before = after = 0, 0
    else:
        assert not isinstance(layer.padding, str)
        before = after = _pair(layer.padding, 0)
    return Convolution(channels, image, kernel, stride, before, after, dilation)


def _pair(numbers: tuple[int, ...], missing: int = 1) -> Pair:
    """Two numbers, down and across. A convolution in one dimension has only one."""
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (missing, numbers[0])


def _is_channels_last(images: Tensor) -> bool:
    return not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)


class _Exchanged(nn.Module):
    """What the subclasses share."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are ordinary layers, and a pickle is read without this package."""
        state = {name: value for name, value in self.__dict__.items() if name != ATTRIBUTE}
        return copyreg._reconstructor, (DENSE_CLASSES[type(self)], object, None), state  # type: ignore[attr-defined]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        output: Tensor | None = self.__dict__[ATTRIBUTE].output(self, input)
        return super().forward(input) if output is None else output


# torch.fx takes a layer as a whole if its class says that it is torch's own.


class SparseLinearLayer(_Exchanged, nn.Linear):
    __module__ = nn.Linear.__module__


class SparseConv1d(_Exchanged, nn.Conv1d):
    __module__ = nn.Conv1d.__module__


class SparseConv2d(_Exchanged, nn.Conv2d):
    __module__ = nn.Conv2d.__module__


class FastBatchNorm1d(_Exchanged, nn.BatchNorm1d):
    __module__ = nn.BatchNorm1d.__module__


class FastBatchNorm2d(_Exchanged, nn.BatchNorm2d):
    __module__ = nn.BatchNorm2d.__module__


LAYER_CLASSES: dict[type, type] = {
    nn.Linear: SparseLinearLayer,
    nn.Conv1d: SparseConv1d,
    nn.Conv2d: SparseConv2d,
}
NORM_CLASSES: dict[type, type] = {nn.BatchNorm1d: FastBatchNorm1d, nn.BatchNorm2d: FastBatchNorm2d}
FAST_CLASSES = LAYER_CLASSES | NORM_CLASSES
DENSE_CLASSES = {fast: dense for dense, fast in FAST_CLASSES.items()}


def can_be_sparse(layer: nn.Module) -> bool:
    """Whether the kernels can compute a layer. A subclass may compute something else."""
    if type(layer) not in LAYER_CLASSES:
        return False
    return isinstance(layer, nn.Linear) or bool(layer.groups == 1 and layer.padding_mode == "zeros")


def exchange_class(module: nn.Module, computation: SparseComputation | BatchNormComputation) -> None:
    """Let a module compute with the kernels where they can."""
    module.__dict__[ATTRIBUTE] = computation
    module.__class__ = FAST_CLASSES[type(module)]


def give_class_back(module: nn.Module) -> None:
    """Give a module its own class back."""
    if type(module) in DENSE_CLASSES:
        module.__class__ = DENSE_CLASSES[type(module)]
        del module.__dict__[ATTRIBUTE]

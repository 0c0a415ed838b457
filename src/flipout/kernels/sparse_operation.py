"""A sparse convolution as an operation of torch, for networks that `torch.export` records and saves."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .geometry import Convolution
from .library import find_kernels
from .sparse_convolution import convolve
from .sparse_pattern import SparsePattern

_patterns: MutableMapping[Tensor, tuple[int, SparsePattern]] = WeakIdKeyDictionary()
"""The pattern of each weight, with the number of changes that the weight had."""


@torch.library.custom_op("flipout::sparse_convolution", mutates_args=())
def sparse_convolution(
    images: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None, clip: bool, settings: list[int]
) -> Tensor:
    """Convolve (images, channels, height, width) with the nonzero weights, add `addend`, and clip negative numbers.

    Args:
        settings: the height and the width of the kernel, the stride, the padding before and after, and the dilation.
    """
    convolution, pattern = _convolution(images, weight, settings), pattern_of(weight)
    values = pattern.values(weight) if find_kernels() is not None and convolution.is_possible else None
    if values is not None and images.dtype == torch.float32:
        return convolve(images, pattern, values, convolution, bias, addend=addend, clip=clip)
    (top, left), (bottom, right) = convolution.before, convolution.after
    padded = torch.nn.functional.pad(images, (left, right, top, bottom))
    kernel = weight.view(*convolution.channels[::-1], *convolution.kernel)
    output = torch.conv2d(padded, kernel, bias, convolution.stride, (0, 0), convolution.dilation)
    output = output if addend is None else output + addend
    return output.relu() if clip else output.clone()


@sparse_convolution.register_fake
def _(
    images: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None, clip: bool, settings: list[int]
) -> Tensor:
    convolution = _convolution(images, weight, settings)
    return images.new_empty(images.shape[0], convolution.channels[1], *convolution.out)


def pattern_of(weight: Tensor) -> SparsePattern:
    """The pattern of a weight, which is found again as long as the weight does not change."""
    if weight not in _patterns or _patterns[weight][0] != weight._version:
        _patterns[weight] = weight._version, SparsePattern(weight != 0)
    return _patterns[weight][1]


def _convolution(images: Tensor, weight: Tensor, settings: list[int]) -> Convolution:
    kernel, stride, before, after, dilation = zip(settings[::2], settings[1::2], strict=True)
    size, channels = (images.shape[2], images.shape[3]), (weight.shape[1], weight.shape[0])
    return Convolution(channels, size, kernel, stride, before, after, dilation)

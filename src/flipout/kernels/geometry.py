"""Where the pixels of a convolution lie in memory: see c/layout.h."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]

SLACK = 16
"""Pixels beyond the last plane that a vector may read."""
LANES, MAX_LANES = 8, 256
"""Images that are packed side by side at least, and at most, if any are."""
SHORT_PLANE, LONG_PLANE, LONG_ROW = 64, 2048, 256
"""Shorter planes need several images to fill the registers. A group of longer planes would not fit into the cache. With
LONG_ROW floats in a row, more images make no difference."""


class Layout(ctypes.Structure):
    """The structure of the same name in c/layout.h."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("channels", "height", "width", "step_y", "step_x", "top", "left"),
            *("rows", "columns", "front", "plane", "tail"),
        )
    )


@dataclass(frozen=True)
class Convolution:
    """A convolution of images of one size. A linear layer is one of images of one pixel.

    Args:
        channels: the channels of the input and of the output.
        image: the height and the width of an image of the input.
        kernel: the height and the width of the kernel.
        stride: the distance of two outputs, down and across.
        before: the padding above the first row and before the first column.
        after: the padding below the last row and after the last column.
        dilation: the distance of two taps, down and across.
    """

    channels: Pair
    image: Pair
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @cached_property
    def reach(self) -> Pair:
        """The distance of the last tap from the first."""
        return self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1)

    @cached_property
    def out(self) -> Pair:
        """The height and the width of an image of the output."""
        height, width = (
            (size + before + after - reach - 1) // stride + 1
            for size, before, after, reach, stride in zip(
                self.image, self.before, self.after, self.reach, self.stride, strict=True
            )
        )
        return height, width

    @cached_property
    def phases(self) -> Pair:
        """The stride, where there is more than one output in a direction."""
        down, across = (stride if size > 1 else 1 for stride, size in zip(self.stride, self.out, strict=True))
        return down, across

    @cached_property
    def columns(self) -> int:
        """The columns of a plane.

        The padding after a row is also the padding before the next one.
        """
        last = (self.out[1] - 1) * self.phases[1] + self.reach[1]
        pixels = max(self.image[1] + self.before[1], last + 1 - self.before[1])
        return max(-(-pixels // self.phases[1]), self.out[1])

    @cached_property
    def input(self) -> Layout:
        (height, width), (down, across) = self.image, self.phases
        rows = max(self.out[0] - 1 + self.reach[0] // down, (self.before[0] + height - 1) // down) + 1
        plane = max(rows * self.columns, self.length + int(self.taps[1].max()))
        return Layout(
            *(self.channels[0], height, width, down, across, *self.before),
            *(rows, self.columns, 0, plane, SLACK),
        )

    @cached_property
    def output(self) -> Layout:
        """The layout of the output's gradient: with so many zeros between planes that each tap can be subtracted."""
        height, width = self.out
        front = max(int(self.taps[1].max()), (self.input.rows - height) * self.columns)
        plane = front + height * self.columns
        return Layout(
            *(self.channels[1], height, width, 1, 1, 0, 0),
            *(height, self.columns, front, plane, front + SLACK),
        )

    @cached_property
    def length(self) -> int:
        """The pixels of a plane from the first to the last output."""
        return (self.out[0] - 1) * self.columns + self.out[1]

    @cached_property
    def taps(self) -> tuple[Tensor, Tensor]:
        """The phase of each tap, and its offset in the plane of that phase."""
        down = torch.arange(self.kernel[0])[:, None] * self.dilation[0]
        across = torch.arange(self.kernel[1])[None, :] * self.dilation[1]
        phase = (down % self.phases[0]) * self.phases[1] + across % self.phases[1]
        return phase.flatten(), ((down // self.phases[0]) * self.columns + across // self.phases[1]).flatten()

    @cached_property
    def is_possible(self) -> bool:
        """Whether there is an output, and positions fit into 32 bits."""
        if min(*self.out, *self.image, *self.channels) < 1:
            return False
        inputs, outputs = self.channels
        phases = self.phases[0] * self.phases[1]
        return bool(max(inputs * phases * self.input.plane, outputs * self.output.plane) < 2**31)

    def padded(self, images: Tensor) -> tuple[Tensor, Pair]:
        """Images, and the padding that torch adds to them: it pads both sides alike."""
        if self.before == self.after:
            return images, self.before
        (top, left), (bottom, right) = self.before, self.after
        return functional.pad(images, (left, right, top, bottom)), (0, 0)

    def lanes(self, images: int) -> int:
        """The images that are packed side by side: as measured, the fastest of 1, 2, 4, 8, ..."""
        if self.length >= LONG_PLANE or (self.length >= SHORT_PLANE and images < LANES):
            return 1
        return min(images, MAX_LANES, LANES * -(-LONG_ROW // (LANES * self.length)))

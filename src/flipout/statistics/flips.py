"""Sign flips: the statistic that FlipOut is built on, with its packed state and its kernels."""

from __future__ import annotations

import math
from functools import cache, partial

import torch
from torch import Tensor

from ..kernels import step_loops
from ..kernels.step_loops import in_c
from ..numerics import wide
from .base import Kernel, Place, Reader, Statistic

LIMIT = 16_383
"""The largest count. (The kernels have it as a literal: a compiler treats named numbers as variables.)"""

PARTS = 64
"""Counts that fade are kept in 64ths of a flip. (A literal in the kernels, too.)"""

WINDOWS = 8
"""Counts that fade do so this many times in a horizon."""


@in_c(step_loops.count_changes)
def count_changes(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor) -> None:
    """The kernel: count the signs that a step has changed."""
    add_changes(weight, mask, low, high, 1)


def read_counts(weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The reader: the counts as floats."""
    bits = high.float()
    return (bits - (bits * (1 / 64)).floor() * 64) * 256 + low.float()


@in_c(partial(step_loops.count_changes, amount=PARTS))
def count_in_parts(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor) -> None:
    """The kernel of counts that fade."""
    add_changes(weight, mask, low, high, 64)


def read_parts(weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The reader of counts that fade."""
    return read_counts(weight, low, high) * (1 / 64)


def add_changes(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor, amount: int) -> None:
    """Add an amount where a step has changed the sign. Bytes become floats first, which every path is fast with."""
    sign, high_bits = wide(weight).sign(), high.float()
    noted = (high_bits * (1 / 64)).floor_()
    changed = (noted - sign).sub_(1).abs_().clamp_max_(1).mul_(mask.float())
    count = (high_bits - noted * 64).mul_(256).add_(low.float()).add_(changed, alpha=amount).clamp_max_(16_383)
    upper = (count * (1 / 256)).floor_()
    low.copy_(count - upper * 256)
    high.copy_(sign.add_(1).mul_(64).add_(upper))


class Flips(Statistic):
    """The number of optimizer steps that changed the weight's sign, of -1, 0 and 1 (Eq. 1b); frozen where pruned.

    A weight that grows back starts at 0, so its first step counts as a flip.

    With a `horizon`, flips are forgotten: a flip that is `horizon` steps old counts `1/e`, also where pruned. All
    counts fade together, every `w = ceil(horizon / 8)` steps of training, by the factor `exp(-w / horizon)`; flips in
    between have the same weight. The counts are fractions of up to 255. They are rounded to 1/64 whenever they fade,
    and these errors fade as well: together they stay below 0.1 flips.

    Two bytes hold a count of up to `LIMIT` and the sign before the current step: `low` is the lower byte of the count,
    `high` has `sgn(theta) + 1` in its upper two bits and the rest of the count below. With a horizon, the count is in
    64ths of a flip.
    """

    gradient = None
    kernel: Kernel = staticmethod(count_changes)
    reader: Reader = staticmethod(read_counts)

    def __init__(self, weight: Tensor, place: Place, *, horizon: int | None = None) -> None:
        super().__init__(weight, place)
        self.state["low"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.state["high"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.horizon = horizon
        if horizon is not None:
            if horizon < 1:
                raise ValueError(f"horizon is {horizon}; give the number of steps to remember flips for, at least 1")
            # A subclass that replaces a form keeps its own.
            self.kernel = count_in_parts if self.kernel is count_changes else self.kernel
            self.reader = read_parts if self.reader is read_counts else self.reader

    def changed(self, weight: Tensor) -> None:
        """Read the signs again: a change that is not a step is not a flip."""
        note_signs(weight, self.state["high"])

    def kernel_at(self, step: int) -> Kernel | None:
        if self.horizon is None or self.kernel is not count_in_parts or step % (window := window_of(self.horizon)):
            return self.kernel
        return count_and_fade(round(math.exp(-window / self.horizon) * 65_536))

    def value(self, weight: Tensor, step: int) -> Tensor:
        count = count_of(self.state["low"], self.state["high"])
        return count if self.horizon is None else count / PARTS


def window_of(horizon: int) -> int:
    """The number of steps after which counts fade."""
    return -(-horizon // WINDOWS)


@cache
def count_and_fade(factor: int) -> Kernel:
    """The kernel of counts that fade, for a step after which they do: they are multiplied with `factor / 65,536`.

    It is integer arithmetic, which is the same on every device.
    """

    @in_c(partial(step_loops.count_changes, amount=PARTS, fade=factor))
    def kernel(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor) -> None:
        add_changes(weight, mask, low, high, 64)
        count = (count_of(low, high) * factor + 32_768) >> 16
        high.copy_((high & 192) + (count >> 8).to(torch.uint8))
        low.copy_(count & 255)

    return kernel


def note_signs(weight: Tensor, high: Tensor) -> None:
    """Store the signs to compare with after the next step."""
    high.bitwise_and_(63).add_((weight.sign() + 1).to(torch.uint8) << 6)


def count_of(low: Tensor, high: Tensor) -> Tensor:
    """The counts as integers."""
    return (high & 63).int() * 256 + low

"""Sign flips: the statistic that FlipOut is built on, with its packed state and its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics import wide
from .base import Place, Statistic

LIMIT = 16_383
"""The largest count. (The kernel has it as a literal: a compiler treats named numbers as variables.)"""


class Flips(Statistic):
    """The number of optimizer steps that changed the weight's sign, of -1, 0 and 1 (Eq. 1b); frozen where pruned.

    A weight that grows back starts at 0, so its first step counts as a flip.

    Two bytes hold a count of up to `LIMIT` and the sign before the current step: `low` is the lower byte of the count,
    `high` has `sgn(theta) + 1` in its upper two bits and the rest of the count below.
    """

    gradient = None

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["low"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.state["high"] = torch.zeros_like(weight, dtype=torch.uint8)
        self.loaded()

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        """Read the signs again if something other than a step has changed the weights: that is not a flip.

        (Torch counts the changes of a tensor. It does not see changes made through `.data`.)
        """
        if (weight._version, weight.data_ptr()) != self._seen:
            note_signs(weight, self.state["high"])

    def settled(self, weight: Tensor) -> None:
        self._seen = weight._version, weight.data_ptr()

    def loaded(self) -> None:
        self._seen = -1, 0

    def value(self, weight: Tensor, step: int) -> Tensor:
        return count_of(self.state["low"], self.state["high"])

    @staticmethod
    def kernel(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor) -> None:
        """Count the signs that a step has changed. Bytes become floats first, which every path is fast with."""
        sign, high_bits = wide(weight).sign(), high.float()
        noted = (high_bits * (1 / 64)).floor_()
        changed = (noted - sign).sub_(1).abs_().clamp_max_(1).mul_(mask.float())
        count = (high_bits - noted * 64).mul_(256).add_(low.float()).add_(changed).clamp_max_(16_383)
        upper = (count * (1 / 256)).floor_()
        low.copy_(count - upper * 256)
        high.copy_(sign.add_(1).mul_(64).add_(upper))

    @staticmethod
    def reader(weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The counts as floats."""
        bits = high.float()
        return (bits - (bits * (1 / 64)).floor() * 64) * 256 + low.float()


def note_signs(weight: Tensor, high: Tensor) -> None:
    """Store the signs to compare with after the next step."""
    high.bitwise_and_(63).add_((weight.sign() + 1).to(torch.uint8) << 6)


def count_of(low: Tensor, high: Tensor) -> Tensor:
    """The counts as integers."""
    return (high & 63).int() * 256 + low

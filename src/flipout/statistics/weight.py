"""The weight itself as a statistic."""

from __future__ import annotations

from torch import Tensor

from ..numerics import wide
from .base import Statistic


class Weight(Statistic):
    """The weight in float32 or float64, so that a power of a half-precision weight does not vanish."""

    reader = staticmethod(wide)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return wide(weight)

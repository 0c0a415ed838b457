"""Uniform random numbers as a statistic."""

from __future__ import annotations

from torch import Tensor

from ..random_numbers import uniform
from .base import Statistic


class Uniform(Statistic):
    """Uniform random numbers, new ones at each step, computed from the pruner's seed: the same when read again."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        where = self.place.positions or weight.shape
        return uniform(where, seed=self.place.seed, step=step, tensor=self.place.tensor, device=weight.device)

"""Choosing what to prune in larger units, against choosing single weights: time, and the memory that it needs."""

from __future__ import annotations

import torch

import flipout
from flipout.export.costs import MemoryCounter
from flipout_lab import build

from .timing import Times, interleaved

GRANULARITIES = ("weight", "kernel", "16x1", "4x4", "2:4", "channel")
SPARSITY = 0.5


class Choice:
    """Global magnitude on ResNet18 with some units. It only chooses: nothing is pruned."""

    def __init__(self, granularity: str) -> None:
        torch.manual_seed(0)
        self.model = build("resnet18", (3, 32, 32))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.pruner = flipout.GlobalMagnitude(
            *(self.model, optimizer),
            sparsity=SPARSITY,
            steps=10**6,
            granularity=granularity,
            exclude="stem" if granularity == "2:4" else None,  # three inputs
            compile=False,
        )
        self.model(torch.zeros(2, 3, 32, 32))
        self.pruner.units.ready(self.model)
        self.keep = self.pruner.plan()[-1].nonzero or 0

    @torch.no_grad()
    def select(self) -> None:
        self.pruner.select(self.keep)

    @torch.no_grad()
    def peak_bytes_per_weight(self) -> float:
        """The most memory that tensors take at one time during the choice, without what was there before."""
        counter = MemoryCounter({tensor.untyped_storage()._cdata for tensor in self._own()})
        with counter:
            self.pruner.select(self.keep)
        return counter.peak / self.pruner.prunable

    def _own(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *self.model.buffers(), *self.pruner.masks.values()]


def measure(repetitions: int) -> tuple[Times, dict[str, float]]:
    """Times of a choice, and its peak memory in bytes per weight, for each granularity."""
    choices = {granularity: Choice(granularity) for granularity in GRANULARITIES}
    times = interleaved({name: choice.select for name, choice in choices.items()}, repetitions)
    return times, {name: choice.peak_bytes_per_weight() for name, choice in choices.items()}

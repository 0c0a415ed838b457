"""A method of your own that prunes and regrows: RigL's rule (Evci et al., 2020)."""

import math
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout
from flipout.ranking import smallest


@flipout.register("my-rigl", title="My RigL", about="the smallest weights; grows those with the largest gradients")
class RigL(flipout.Pruner):
    """RigL: a constant sparsity. Each update prunes the smallest weights and grows those with the largest gradients.

    Args:
        share: the share of the kept weights that the first update replaces; it falls to 0 along a cosine.
        updates: number of updates, in the first three quarters of training.
    """

    tracks = ("full_grad",)

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        share: float = 0.3,
        updates: int = 50,
        **options: Any,
    ) -> None:
        self.share = share
        schedule = flipout.Constant(sparsity, steps, prunings=updates, window=(0, 0.75))
        super().__init__(model, optimizer, criterion=flipout.criteria.magnitude, schedule=schedule, **options)

    def select(self, keep: int) -> flipout.Selection:
        if not self.events:
            return super().select(keep)  # before the first step: down to the sparsity
        progress = (len(self.events) - 1) / (len(self.plan()) - 1)
        count = round(keep * self.share * (1 + math.cos(math.pi * progress)) / 2)
        count = min(count, self.prunable - keep, keep - sum(self.floors))
        pruned = super().select(keep - count).prune  # the smallest weights, under the floors
        candidates = [~weight.mask for weight in self.weights]
        return flipout.Selection(pruned, grow=smallest(self._indifference, candidates, count))

    def _indifference(self, i: int) -> Tensor:
        return -self.statistics.value(self.weights[i], "full_grad").abs()

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"share": self.share}


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = RigL(model, optimizer, sparsity=0.95, steps=400, floor=0.02)
    for _ in range(400):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    print(pruner.summary())
    print(f"{sum(event.grown for event in pruner.events):,} weights grew back in {len(pruner.events) - 1} updates")

"""Your own criterion is a function. Its argument names say which statistics it needs."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout


def first_order(weight: Tensor, grad: Tensor, flips: Tensor, *, power: float = 1.0) -> Tensor:
    """The first-order change of the loss without the weight, divided by its sign flips. The lowest are pruned first."""
    return (weight * grad).abs().pow(power) / (flips + 1)


images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

pruner = flipout.Pruner(
    model,
    optimizer,
    criterion=first_order,
    schedule=flipout.Cubic(sparsity=0.9, steps=300, prunings=20, window=(0.1, 0.6)),
    noise=flipout.GradientNoise(scale=0.5),
    floor=0.02,  # no layer falls below 2 % of its weights
)
print(pruner.plan())
for _ in range(300):
    batch = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
print(pruner.summary())

"""Use the aim test to see whether gradient noise turns under-shoots of zero into over-shoots."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import flipout

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
for scale in (0.0, 1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    aim = flipout.AimTest(model, optimizer, phi=0.0, kappa=20)
    flipout.Dense(model, optimizer, noise=scale)  # no pruning, only noise
    for _ in range(300):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    over = sum(int(count.sum()) for count in aim.over_shoots.values())
    under = sum(int(count.sum()) for count in aim.under_shoots.values())
    print(f"noise {scale}: {over:,} over-shoots, {under:,} under-shoots, {over / (over + under):.2%} over")

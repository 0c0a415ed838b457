"""SNIP evaluates the loss before training: it needs a few batches and the loss function."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import flipout

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)

pruner = flipout.SNIP(
    model,
    optimizer,
    sparsity=0.95,
    steps=5 * len(loader),
    batches=[next(iter(loader))],  # or the loader itself, to use all of the data
    loss_fn=nn.functional.cross_entropy,
    rounds=10,  # prune in ten rounds, with a new gradient for each; 1 is the original method
)
print(pruner)  # pruned before the first step

for _ in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
print(pruner.summary())

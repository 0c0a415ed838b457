"""Hoyer-Square adds a penalty to the loss, prunes once at 70 % of training, and fine-tunes without the penalty."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import flipout

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)

# Without sparsity=, all weights below threshold= are pruned, and the sparsity depends on lambda_.
pruner = flipout.HoyerSquare(model, optimizer, sparsity=0.9, steps=10 * len(loader), lambda_=1e-3)

for _ in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets) + pruner.penalty()
        loss.backward()
        optimizer.step()
print(pruner.summary())

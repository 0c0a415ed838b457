"""Stop a training run, resume it with new objects, and get the same weights bit for bit."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import flipout

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
STEPS = 300


def build() -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, flipout.FlipOut(model, optimizer, sparsity=0.95, steps=STEPS)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, start: int, stop: int) -> None:
    for step in range(start, stop):
        batch = torch.randint(len(x), (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


checkpoint = Path(tempfile.mkdtemp()) / "checkpoint.pt"
model, optimizer, pruner = build()
train(model, optimizer, 0, 100)
training: dict[str, Any] = {"model": model, "optimizer": optimizer, "pruner": pruner}
torch.save({name: each.state_dict() for name, each in training.items()}, checkpoint)
train(model, optimizer, 100, STEPS)

model_again, optimizer_again, pruner_again = build()
saved = torch.load(checkpoint, weights_only=True)
model_again.load_state_dict(saved["model"])
optimizer_again.load_state_dict(saved["optimizer"])
pruner_again.load_state_dict(saved["pruner"])
train(model_again, optimizer_again, 100, STEPS)

same = all(torch.equal(a, b) for a, b in zip(model.parameters(), model_again.parameters(), strict=True))
print(pruner_again)
print(f"identical to the last bit: {same}")

"""Draws what a pruner does during one training: the sparsity, and how often pruned and kept weights flipped."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import flipout

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("digits.png"))
out = parser.parse_args().out

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
steps = 840
pruner = flipout.FlipOut(model, optimizer, sparsity=0.95, steps=steps)
kept = []
for _ in range(steps):
    batch = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    kept.append(pruner.nonzero)

flips = torch.cat([flips.flatten() for flips in pruner.statistics["flips"].values()]).clamp(max=6)
alive = torch.cat([mask.flatten() for mask in pruner.masks.values()])
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.step(range(1, steps + 1), kept, where="post", color="#1f6f8b")
left.set(
    yscale="log", xlabel="optimizer step", ylabel="weights kept", title=f"{pruner.prunable:,} to {pruner.nonzero:,}"
)
left.axhline(pruner.nonzero, color="#999999", linewidth=0.8, linestyle=":")
bins = [edge - 0.5 for edge in range(8)]
for chosen, label, color in ((~alive, "pruned", "#c8553d"), (alive, "kept", "#1f6f8b")):
    right.hist(flips[chosen].numpy(), bins=bins, density=True, histtype="step", linewidth=1.8, label=label, color=color)
right.set(xlabel="sign flips while alive (6: or more)", ylabel="share of weights", title="Sign flips in the same run")
right.legend(frameon=False)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(out, dpi=120)
print(f"saved {out}")

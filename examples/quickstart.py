"""Compare FlipOut with global magnitude on scikit-learn's digits: one training run each, at the same sparsity."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout

SPARSITY, BATCH = 0.95, 64


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 1,400 training images of 8 x 8 pixels with labels, and 397 test images with labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def train(method: Callable[..., flipout.Pruner], epochs: int, progress: Progress) -> tuple[flipout.Pruner, float]:
    """Train as usual. The line that calls `method` is the only one that pruning adds."""
    torch.manual_seed(0)
    x, y, x_test, y_test = digits()
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * (len(x) // BATCH)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 150 // 350, steps * 250 // 350])
    pruner = method(model, optimizer, sparsity=SPARSITY, steps=steps)
    task = progress.add_task(method.__name__, total=steps, sparsity=0.0)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            rates.step()
            progress.update(task, advance=1, sparsity=pruner.sparsity)
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).float().mean())
    return pruner, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    console = Console()
    columns = [
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sparsity {task.fields[sparsity]:.2%}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        methods = (flipout.Dense, flipout.GlobalMagnitude, flipout.FlipOut)
        results = {method.__name__: train(method, epochs, progress) for method in methods}
    console.print(f"\nFlipOut, layer by layer:\n{results['FlipOut'][0].summary()}\n", highlight=False)
    table = Table(title=f"scikit-learn digits, MLP 300-100, {epochs} epochs, seed 0, last epoch")
    for column in ("method", "weights kept", "sparsity", "test accuracy"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, (pruner, accuracy) in results.items():
        table.add_row(name, f"{pruner.nonzero:,} of {pruner.prunable:,}", f"{pruner.sparsity:.4%}", f"{accuracy:.2%}")
    console.print(table)


if __name__ == "__main__":
    main()

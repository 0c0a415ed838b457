"""The four errata of the paper, measured on scikit-learn's digits. docs/method.md explains them."""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout
from flipout import Geometric, GlobalMagnitude, GradientNoise, PaperFlipOut, Pruner
from flipout.criteria import flip_saliency
from flipout_lab.paper import printed_saliency, signed_saliency

SPARSITY, BATCH = 0.9375, 64
Attach = Callable[[nn.Module, torch.optim.Optimizer, int], Pruner]


def with_criterion(criterion: Callable[..., Tensor]) -> Attach:
    return lambda m, o, n: Pruner(m, o, criterion=criterion, schedule=Geometric.paper(SPARSITY, n), noise=1.0)


def flips_out(noise: GradientNoise, schedule: str | None = "paper") -> Attach:
    return lambda m, o, n: PaperFlipOut(m, o, sparsity=SPARSITY, steps=n, noise=noise, schedule=schedule)  # type: ignore[arg-type]


CASES: dict[str, Attach] = {
    "FlipOut, noise relative to the gradient, flips + 1": flips_out(GradientNoise()),
    "1. noise relative to the weights, as printed": flips_out(GradientNoise(relative_to="weight")),
    "1. the same with lambda = 0.1": flips_out(GradientNoise(0.1, relative_to="weight")),
    "1. no noise": flips_out(GradientNoise(0.0)),
    "2. divided by flips, as printed": with_criterion(printed_saliency),
    "3. p = 1 with the absolute value": with_criterion(partial(flip_saliency, p=1)),
    "3. p = 1 without it": with_criterion(partial(signed_saliency, p=1)),
    "FlipOut, our schedule": flips_out(GradientNoise(), None),
    "global magnitude, the paper's schedule": lambda m, o, n: GlobalMagnitude(
        m, o, sparsity=SPARSITY, steps=n, schedule="paper"
    ),
    "global magnitude, our schedule": lambda m, o, n: GlobalMagnitude(m, o, sparsity=SPARSITY, steps=n),
}


def accuracy(attach: Attach, epochs: int, seed: int) -> float:
    """Return the accuracy of the last epoch on the test images, or NaN if training diverged."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * (1400 // BATCH)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 150 // 350, steps * 250 // 350])
    pruner = attach(model, optimizer, steps)
    for step in range(steps):
        if step % (1400 // BATCH) == 0:
            order = torch.randperm(1400)
        batch = order[step % (1400 // BATCH) * BATCH :][:BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        try:
            optimizer.step()
        except FloatingPointError:  # the weights are NaN or infinite
            return float("nan")
        rates.step()
    assert pruner.nonzero == round(pruner.prunable * (1 - SPARSITY))
    with torch.no_grad():
        return float((model(x[1400:]).argmax(1) == y[1400:]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", flipout.DivergenceWarning)
    warnings.simplefilter("ignore", flipout.UnfinishedWarning)
    warnings.simplefilter("ignore", flipout.DeadLayerWarning)
    console = Console(width=100)
    title = f"digits, MLP 300-100, sparsity {SPARSITY:.2%}, {options.epochs} epochs, {options.seeds} seeds, last epoch"
    table = Table("setting", title=title)
    table.add_column("test accuracy", justify="right")
    for name, attach in track(CASES.items(), description="training", console=console):
        results = [accuracy(attach, options.epochs, seed) for seed in range(options.seeds)]
        finite = [result for result in results if result == result]
        mean = f"{statistics.mean(finite):.1%} ± {statistics.pstdev(finite):.1%}" if finite else ""
        diverged = f"{len(results) - len(finite)} of {len(results)} diverged" if len(finite) < len(results) else ""
        table.add_row(name, ", ".join(filter(None, (mean, diverged))))
    console.print(table)


if __name__ == "__main__":
    main()

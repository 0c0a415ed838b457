"""What gradient clipping does to a training at 98 %: `python -m benchmarks.clipping`, about a minute.

A small CNN on scikit-learn's digits, SGD with a cosine, 16 epochs. Prints the accuracies on the test images as
the table of the guide.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import flipout
from examples.quickstart import digits

SPARSITY, EPOCHS, BATCH, SEEDS, MAX_NORM = 0.98, 16, 64, (0, 1, 2), 1.0
METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    "FlipOut": flipout.FlipOut,
    "global magnitude": flipout.GlobalMagnitude,
}


def no_clipping(pruner: flipout.Pruner) -> None:
    pass


def clipping(pruner: flipout.Pruner) -> None:
    nn.utils.clip_grad_norm_(pruner.model.parameters(), MAX_NORM)


def clipping_by_all(pruner: flipout.Pruner) -> None:
    """What a norm would do that includes the gradients of pruned weights."""
    parameters = list(pruner.model.parameters())
    full = {id(weight.parameter): pruner.work.gradients.full(weight) for weight in pruner.weights}
    grads = [full.get(id(parameter), parameter.grad) for parameter in parameters]
    norm = nn.utils.get_total_norm([grad for grad in grads if grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, MAX_NORM, norm)


SETTINGS: dict[str, Callable[[flipout.Pruner], None]] = {
    "no clipping": no_clipping,
    f"max_norm={MAX_NORM}": clipping,
    f"{MAX_NORM} of a norm with pruned weights": clipping_by_all,
}


def network() -> nn.Sequential:
    """9,872 weights in two convolutions and a classifier."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


def accuracy(method: Callable[..., flipout.Pruner], clip: Callable[[flipout.Pruner], None], seed: int) -> float:
    """The accuracy after a training, in percent."""
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * (len(x) // BATCH)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    pruner = method(model, optimizer, sparsity=SPARSITY, steps=steps, seed=seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            clip(pruner)
            optimizer.step()
            rates.step()
    pruner.check()
    model.eval()
    with torch.no_grad():
        return 100 * float((model(x_test).argmax(1) == y_test).float().mean())


def main() -> None:
    print("| method | clipping |", " | ".join(f"seed {seed}" for seed in SEEDS), "|")
    print("|---|---|" + "---|" * len(SEEDS))
    for name, method in METHODS.items():
        for setting, clip in SETTINGS.items():
            found = (f"{accuracy(method, clip, seed):.1f}" for seed in SEEDS)
            print(f"| {name} | {setting} |", " | ".join(found), "|", flush=True)


if __name__ == "__main__":
    main()

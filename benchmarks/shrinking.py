"""`make bench-train`: the time of a whole training, dense and with FlipOut, without and with shrinking.

VGG19 and ResNet18 at their full width, batches of 128, real CIFAR-10 where `$FLIPOUT_DATA` has it and random images
otherwise. The schedule of a training is compressed into `--steps` steps. Every third step, and the first after each
shrink, is timed with a whole batch, right after a step of the dense network, so that a slow moment of the machine slows
both. The steps between have smaller batches. From these ratios follows the time of a training of `EPOCHS` epochs: each
counts as often as there are steps like it, and prunings and shrinks count as often as they happen there.

The ratios are written to benchmarks/train.json as `{figure: {network-sparsity: number}}`.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import flipout
from flipout.shrinking import shrinker
from flipout_lab import build
from flipout_lab.errors import LabError
from flipout_lab.files import write_json

from .export import cifar10

OUT = Path(__file__).with_name("train.json")
NETWORKS = ("vgg19", "resnet18")
SPARSITIES = (0.99, 0.999)
BATCH, EPOCHS, IMAGES = 128, 30, 50_000
REAL_STEPS = EPOCHS * -(-IMAGES // BATCH)
TIMED = 3
"""Every how many steps one is timed against the dense network."""
SMALL_BATCH = 32
"""The images of a batch that is not timed."""
EARLY_END = 0.2
"""The share of training at which prunings end with an early end."""
FLOOR = {"vgg19-0.999": 256}
"""The weights that each layer keeps at least, where a short training would leave no path from input to output."""


class Training:
    """One training, dense or pruned, timed step by step."""

    def __init__(
        self, network: str, width: float, method: str, sparsity: float, steps: int, *, shrinks: bool, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = build(network, width=width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
        self.steps, self.shrinks, self.prunings = steps, shrinks, 0
        self.pruning_seconds: list[float] = []
        self.shrink_seconds: list[float] = []
        self.ratios: dict[int, float] = {}
        """For each timed step: its time over that of the dense network just before it."""
        if method == "dense":
            return
        end = 0.5 if method in ("default", "permanent") else EARLY_END
        chances = flipout.SecondChances() if method.startswith("default") else None
        floor = FLOOR.get(f"{network}-{sparsity}", 0) if width == 1 else 0
        options |= {"end": end, "second_chances": chances, "floor": floor}
        self.pruner = flipout.FlipOut(self.model, self.optimizer, sparsity=sparsity, steps=steps, **options)
        plan = flipout.Geometric(sparsity, REAL_STEPS, window=(0.05, end)).plan(10**6)
        self.prunings = len(plan if chances is None else chances.extend(plan, REAL_STEPS))
        prune = self.pruner.prune
        self.pruner.prune = lambda pruning: _timed(self.pruning_seconds, prune, pruning)  # type: ignore[method-assign]

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Train with a batch; return the seconds without those of a pruning."""
        prunings, start = len(self.pruning_seconds), time.perf_counter()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start - sum(self.pruning_seconds[prunings:])

    def is_timed(self, number: int) -> bool:
        """Whether a step is timed against the dense network."""
        return number % TIMED == 0

    def shrink(self, images: Tensor) -> bool:
        """Shrink the network if that pays."""
        before = len(self.pruner.shrinks)
        if self.shrinks:
            _timed(self.shrink_seconds, lambda: self.pruner.worth_shrinking and self.pruner.shrink(images))
        return len(self.pruner.shrinks) > before

    def step_ratios(self) -> list[float]:
        """The time of each step over that of a dense one: the median of those timed between the same two shrinks."""
        ends = [0, *(shrink.step for shrink in self.pruner.shrinks), self.steps]
        ratios: list[float] = []
        for start, end in pairwise(ends):
            timed = [ratio for step, ratio in self.ratios.items() if start <= step < end]
            ratios += [statistics.median_low(timed)] * (end - start)
        return ratios

    def whole(self, dense_step: float) -> float:
        """The time of a training over that of a dense one, whose steps take `dense_step` seconds."""
        pruning = statistics.median_low(self.pruning_seconds) * self.prunings
        once = (pruning + sum(self.shrink_seconds)) / (REAL_STEPS * dense_step)
        return statistics.fmean(self.step_ratios()) + once


def _timed(seconds: list[float], work: Any, *arguments: Any) -> None:
    start = time.perf_counter()
    work(*arguments)
    seconds.append(time.perf_counter() - start)


def images_and_labels(batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of CIFAR-10, or of random images where there is none."""
    try:
        with cifar10() as (train_set, _):
            epoch = 0
            while True:
                yield from train_set.shuffled(batch, seed=0, epoch=epoch)
                epoch += 1
    except (SystemExit, LabError) as error:
        Console().print(f"random images instead of CIFAR-10: {error}")
    while True:
        yield torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))


def train(
    training: Training, dense: Training, batches: Iterator[tuple[Tensor, Tensor]], say: Callable[[str], None]
) -> float:
    """Train to the end, and time some steps against the dense network; return the median time of its step."""
    is_new, dense_seconds = True, []
    for number in range(training.steps):
        images, labels = next(batches)
        if is_new:  # the first pass of a network of a new size takes longer
            nn.functional.cross_entropy(training.model(images), labels).backward()
            training.optimizer.zero_grad()
        if number and (
            is_new or training.is_timed(number)
        ):  # not the first step, in which the work around it is compiled
            dense_seconds.append(dense.step(images, labels))
            training.ratios[number] = training.step(images, labels) / dense_seconds[-1]
            ratio, place = training.ratios[number], f"step {number + 1} of {training.steps}"
            say(f"{place}: {dense_seconds[-1]:.2f} s for the dense network, {ratio:.2f} of it here")
        else:
            training.step(images[:SMALL_BATCH], labels[:SMALL_BATCH])
        is_new = training.shrink(images)
    return statistics.median(dense_seconds)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--width", type=float, default=1.0, help="width of the networks")
    arguments.add_argument("--steps", type=int, default=40, help="steps that a training is compressed into")
    arguments.add_argument("--batch", type=int, default=BATCH, help="images of a batch")
    arguments.add_argument("--networks", nargs="+", default=NETWORKS, help="networks to train")
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the figures to")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    # A shrink must be worth its cost in the long training, not in the few steps that are taken here.
    shrinker.FIXED_COST *= given.steps / REAL_STEPS
    shrinker.COST_PER_WEIGHT *= given.steps / REAL_STEPS
    console, batches = Console(width=120), images_and_labels(given.batch)
    results: dict[str, dict[str, float]] = {}
    table = Table("network", "training", "dense step", "last step", "pruning", "shrinks", "weights", "dense / this")
    dense = {name: Training(name, given.width, "dense", 0.0, given.steps, shrinks=False) for name in given.networks}
    for figure, method, shrinks, sparsities in WAYS:
        for network, sparsity in product(given.networks, sparsities):
            name = f"{network}-{sparsity}"
            training = Training(network, given.width, method, sparsity, given.steps, shrinks=shrinks)
            seconds = train(training, dense[network], batches, partial(console.print, name, method))
            results.setdefault(figure, {})[name] = round(1 / training.whole(seconds), 3)
            count, last = len(training.pruner.shrinks), training.step_ratios()[-1]
            if shrinks:
                results.setdefault(f"{figure}_last_step", {})[name] = round(1 / last, 3)
                results.setdefault(f"{figure}_weights", {})[name] = training.pruner.computed
            pruning, spent = statistics.median_low(training.pruning_seconds), sum(training.shrink_seconds)
            cells = f"{seconds:.2f} s", f"{last:.2f} of it", f"{pruning:.2f} s", f"{count} in {spent:.1f} s"
            weights, faster = f"{training.pruner.computed:,}", f"{results[figure][name]:.2f}"
            table.add_row(name, method, *cells, weights, faster)
            training.pruner.remove()
            write_json(given.out, results)
    console.print(table)


WAYS = (
    ("train_time_dense_over_shrunk", "permanent", True, SPARSITIES),
    ("train_time_dense_over_not_shrunk", "permanent", False, SPARSITIES[-1:]),
    ("train_time_dense_over_shrunk_default_method", "default", True, SPARSITIES),
    ("train_time_dense_over_shrunk_early_end", "permanent, early end", True, SPARSITIES[-1:]),
)
"""Each figure: its name, how weights are pruned, whether the network is shrunk, and its sparsities."""


if __name__ == "__main__":
    main()

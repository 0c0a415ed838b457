"""`make bench-train`: the time of a whole training, dense and with FlipOut, without and with shrinking.

VGG19 and ResNet18 at their full width, batches of 128, real CIFAR-10 where `$FLIPOUT_DATA` has it and random images
otherwise. The trainings are short: their schedules are compressed into `--steps` steps. The networks are trained in
lockstep, one step of each in turn, so that a slow moment of the machine slows all of them. From the times of the parts
follows the time of a training of `EPOCHS` epochs: every step counts as often as there are steps like it, and prunings
and shrinks count as often as they happen there.

The ratios are written to benchmarks/train.json as `{figure: {network-sparsity: number}}`.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import flipout
from flipout.lab import build
from flipout.lab.errors import LabError
from flipout.lab.files import write_json
from flipout.lab.reports.matplotlib_figures import Drawing
from flipout.shrinking import decision

from .export import cifar10

OUT = Path(__file__).with_name("train.json")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "shrinking.png"
NETWORKS = ("vgg19", "resnet18")
SPARSITIES = (0.99, 0.999)
BATCH, EPOCHS, IMAGES = 128, 30, 50_000
REAL_STEPS = EPOCHS * -(-IMAGES // BATCH)
FLOOR = {"vgg19-0.999": 256}
"""The weights that each layer keeps at least, where a short training would leave no path from input to output."""


class Training:
    """One training, timed step by step."""

    def __init__(self, network: str, width: float, method: str, sparsity: float, steps: int, *, shrinks: bool) -> None:
        torch.manual_seed(0)
        self.model = build(network, width=width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
        options: dict[str, Any] = {"floor": FLOOR.get(f"{network}-{sparsity}", 0)} if width == 1 else {}
        self.pruner: flipout.Pruner
        if method == "dense":
            self.pruner = flipout.Dense(self.model, self.optimizer, steps=steps)
            self.pruner.remove()
            self.prunings = 0
        else:
            revival = flipout.Revival() if method == "default" else None
            options |= {"revival": revival, "compile": True}  # as in a long training
            self.pruner = flipout.FlipOut(self.model, self.optimizer, sparsity=sparsity, steps=steps, **options)
            plan = flipout.Geometric(sparsity, REAL_STEPS).plan(10**6)
            self.prunings = len(plan if revival is None else revival.extend(plan, REAL_STEPS))
        self.shrinks, self.steps = shrinks, steps
        self.step_seconds: list[float] = []
        self.pruning_seconds: list[float] = []
        self.shrink_seconds: list[float] = []
        prune = self.pruner.prune
        self.pruner.prune = lambda pruning: self._timed(self.pruning_seconds, prune, pruning)  # type: ignore[method-assign]

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Train with a batch."""
        prunings, start = len(self.pruning_seconds), time.perf_counter()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_seconds.append(time.perf_counter() - start - sum(self.pruning_seconds[prunings:]))
        if self.shrinks:
            self._timed(self.shrink_seconds, self._shrink, images)

    def _shrink(self, images: Tensor) -> None:
        if self.pruner.worth_shrinking:
            self.pruner.shrink(images)

    @staticmethod
    def _timed(seconds: list[float], work: Any, *arguments: Any) -> None:
        start = time.perf_counter()
        work(*arguments)
        seconds.append(time.perf_counter() - start)

    @property
    def whole(self) -> float:
        """The seconds of a training of `REAL_STEPS` steps.

        The steps between two shrinks count with their median. What goes beyond it, mostly compilation, counts once.
        """
        scale, whole = REAL_STEPS / self.steps, sum(self.shrink_seconds)
        for stage in self._stages():
            usual = statistics.median_low(stage) * len(stage)
            whole += scale * usual + max(0.0, sum(stage) - usual)
        if self.pruning_seconds:
            usual = statistics.median_low(self.pruning_seconds)
            whole += usual * self.prunings + max(0.0, sum(self.pruning_seconds) - usual * len(self.pruning_seconds))
        return whole

    @property
    def epoch_seconds(self) -> list[float]:
        """The seconds of an epoch at each step, if all its steps took as long as those between the same shrinks."""
        per_epoch = REAL_STEPS / EPOCHS
        return [per_epoch * statistics.median_low(stage) for stage in self._stages() for _ in stage]

    def _stages(self) -> list[list[float]]:
        """The seconds of the steps between shrinks."""
        ends = [0, *(shrink.step for shrink in self.pruner.shrinks), self.steps]
        stages = [self.step_seconds[start:end] for start, end in pairwise(ends)]
        return [stage for stage in stages if stage]


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


def measure(network: str, width: float, steps: int, batch: int, console: Console) -> dict[str, Training]:
    """Train a network in all ways, in lockstep."""
    ways = {"dense": Training(network, width, "dense", 0.0, steps, shrinks=False)}
    ways["flipout"] = Training(network, width, "for good", SPARSITIES[-1], steps, shrinks=False)
    for sparsity in SPARSITIES:
        for method in ("for good", "default"):
            ways[f"{method} {sparsity}"] = Training(network, width, method, sparsity, steps, shrinks=True)
    batches = images_and_labels(batch)
    with console.status(network) as status:
        for number in range(steps):
            images, labels = next(batches)
            for name, training in ways.items():
                status.update(f"{network}: step {number + 1} of {steps}, {name}")
                training.step(images, labels)
    return ways


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--width", type=float, default=1.0, help="width of the networks")
    arguments.add_argument("--steps", type=int, default=24, help="steps that a training is compressed into")
    arguments.add_argument("--batch", type=int, default=BATCH, help="images of a batch")
    arguments.add_argument("--networks", nargs="+", default=NETWORKS, help="networks to train")
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the figures to")
    arguments.add_argument("--picture", type=Path, default=PICTURE, help="file to draw the seconds per epoch into")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    # A shrink must be worth its cost in the long training, not in the few steps that are taken here.
    decision.FIXED_COST *= given.steps / REAL_STEPS
    decision.COST_PER_WEIGHT *= given.steps / REAL_STEPS
    console = Console(width=140)
    results: dict[str, dict[str, float]] = {}
    table = Table("network", "training", "step at first", "step at the end", "pruning", "shrinks", "whole", "faster")
    for network in given.networks:
        ways = measure(network, given.width, given.steps, given.batch, console)
        dense = ways["dense"].whole
        for name, way in ways.items():
            ends = statistics.median(way.step_seconds[1:4]), statistics.median(way.step_seconds[-way.steps // 4 :])
            pruning = statistics.mean(way.pruning_seconds) if way.pruning_seconds else 0.0
            shrinks = f"{len(way.pruner.shrinks)} in {sum(way.shrink_seconds):.1f} s" if way.shrinks else ""
            whole = f"{way.whole / 3600:.2f} h"
            table.add_row(
                network, name, *(f"{s:.2f} s" for s in (*ends, pruning)), shrinks, whole, f"{dense / way.whole:.2f}"
            )
        if given.picture is not None and network == given.networks[0]:
            draw(given.picture, network, ways)
        for figure, key, shown in FIGURES:
            for sparsity in SPARSITIES:
                way = ways[key.format(sparsity)]
                results.setdefault(figure, {})[f"{network}-{sparsity}"] = round(shown(dense, way), 3)
    write_json(given.out, results)
    console.print(table)


def draw(path: Path, network: str, ways: dict[str, Training]) -> None:
    """Draw the seconds per epoch over a training: dense, and pruned to the highest sparsity."""
    labels = {
        "dense": ("dense", "#333333"),
        f"for good {SPARSITIES[-1]}": (f"FlipOut to {SPARSITIES[-1]:.1%}, shrinking", "#0072b2"),
        f"default {SPARSITIES[-1]}": ("the same with second chances, the default", "#e69f00"),
    }
    with Drawing(path, f"{network}, CIFAR-10, batches of {BATCH}: seconds per epoch") as axes:
        for key, (label, colour) in labels.items():
            way = ways[key]
            x = [100 * number / way.steps for number in range(way.steps + 1)]
            axes.step(x, [*way.epoch_seconds, way.epoch_seconds[-1]], where="post", color=colour, label=label)
        axes.set(xlabel="share of training (%)", ylabel="seconds per epoch", xlim=(0, 100))
        axes.set_ylim(bottom=0)


def _end(dense: float, way: Training) -> float:
    """How much faster a step of the last quarter is than the mean step of a dense training."""
    return dense / REAL_STEPS / statistics.median(way.step_seconds[-way.steps // 4 :])


FIGURES = (
    ("train_time_dense_over_shrunk", "for good {}", lambda dense, way: dense / way.whole),
    ("train_time_dense_over_shrunk_default_method", "default {}", lambda dense, way: dense / way.whole),
    ("train_time_dense_over_not_shrunk", "flipout", lambda dense, way: dense / way.whole),
    ("step_time_dense_over_shrunk_at_the_end", "for good {}", _end),
    ("computed_weights_at_the_end", "for good {}", lambda dense, way: way.pruner.computed),
)
"""Each figure: its name, the training it is of, and how it follows from the time of the dense one."""


if __name__ == "__main__":
    main()

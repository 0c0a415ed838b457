"""`make bench-export`: file sizes and latencies of ResNet18 and VGG19, dense and pruned.

Single weights are pruned to 99 % and 99.9 %, whole channels to 70 % and 90 %. A short training on real CIFAR-10 with
FlipOut produces the masks. If it leaves no path from input to output, which may happen in so short a training, the
network is measured anyway, and then trained again with `floor=`. Ratios are ratios of medians, timed in rotation in
this one run. They are written to benchmarks/export.json as `{figure: {network: number}}`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.export.costs import dense_file_bytes, sparse_file_bytes
from flipout.export.timing import time_interleaved
from flipout_lab import build, load
from flipout_lab.data import data_home
from flipout_lab.data.batches import Images, prepare
from flipout_lab.files import write_json
from flipout_lab.runs.networks import evaluate

OUT = Path(__file__).with_name("export.json")
NETWORKS = ("resnet18", "vgg19")
SPARSITIES = (0.99, 0.999)
CHANNEL_SPARSITIES = (0.7, 0.9)
BATCHES = {1: 25, 32: 11}  # batch size: repetitions of each timing
FLOOR = 256  # weights that each layer keeps at least
BATCH, TRAINED, TESTED, CALIBRATED = 32, 4096, 1000, 20

Figures = dict[str, dict[str, float]]


@contextmanager
def cifar10() -> Iterator[tuple[Images, Images]]:
    """Yield images to train and to test with. A script next to the data prepares CIFAR-10, if there is one."""
    home = data_home() / "cifar10"
    script = home / "prepare.py"
    with tempfile.TemporaryDirectory() as folder:
        if not (home / "cifar-10-batches-py").is_dir():
            if not script.exists():
                sys.exit(
                    f"this benchmark needs the real CIFAR-10 in {home}: set FLIPOUT_DATA to the folder that contains it"
                )
            subprocess.run([sys.executable, str(script), f"{folder}/cifar10"], check=True)
            os.environ["FLIPOUT_DATA"] = folder
        train_set, test_set = prepare(load("cifar10"), torch.device("cpu"), validate=False)
    for images, size in ((train_set, TRAINED), (test_set, TESTED)):
        images.images, images.labels = images.images[:size], images.labels[:size]
    yield train_set, test_set


def trained(network: str, sparsity: float, width: float, steps: int, floor: int, images: Images) -> nn.Module:
    """Return a network that FlipOut pruned in a short training, with updated statistics of its norms."""
    torch.manual_seed(0)
    model = build(network, width=width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=sparsity, steps=steps, floor=floor, compile=False)
    return finished(model, optimizer, pruner, steps, images)


def trained_in_channels(network: str, sparsity: float, width: float, steps: int, images: Images) -> nn.Module:
    """Return a network of which FlipOut pruned whole channels in a short training."""
    torch.manual_seed(0)
    model = build(network, width=width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    pruner = flipout.FlipOut(model, optimizer, sparsity=sparsity, steps=steps, granularity="channel", compile=False)
    return finished(model, optimizer, pruner, steps, images)


def finished(
    model: nn.Module, optimizer: torch.optim.Optimizer, pruner: flipout.Pruner, steps: int, images: Images
) -> nn.Module:
    """Return the network after its training, with updated statistics of its norms."""
    batches = endless(images)
    for _ in range(steps):
        x, y = next(batches)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    pruner.remove()
    with torch.no_grad():
        for _ in range(CALIBRATED):
            model(next(batches)[0])
    return model.eval()


def endless(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        yield from images.shuffled(BATCH, seed=0, epoch=epoch)
        epoch += 1


@torch.no_grad()
def measure(name: str, model: nn.Module, images: Images) -> tuple[Figures, list[list[str]]]:
    """Return the figures of one network, and rows for the table of latencies."""
    example, _ = images.take(torch.arange(max(BATCHES)))
    live = export.effective_weights(model, example[:1])
    figures: Figures = {
        "file_dense_over_sparse": {name: dense_file_bytes(model) / sparse_file_bytes(model)},
        "latency_dense_over_compact": {},
        "latency_dense_over_accelerated": {},
        "nonzero_weights": {name: live.nonzero},
        "effective_weights": {name: live.effective},
        "test_accuracy": {name: evaluate(model, images)},
    }
    small: Any = export.compact(model, example[:1])  # its report is an attribute that nn.Module does not declare
    rows: list[list[str]] = []
    figures["compacted_weights"] = {name: small.compaction.weights[1]}
    for batch, repetitions in BATCHES.items():
        x = example[:batch]
        fast: Any = export.accelerate(model, x, repetitions=repetitions)
        forms = {"dense": model, "compact": small, "accelerated": fast}
        times = time_interleaved({form: partial(network, x) for form, network in forms.items()}, repetitions)
        ratios = {form: times["dense"].median / times[form].median for form in ("compact", "accelerated")}
        for form, ratio in ratios.items():
            figures[f"latency_dense_over_{form}"][f"{name}-batch{batch}"] = ratio
        chosen = fast.choices[-1].chosen
        sparse = sum(choice.chosen != "dense" for choice in fast.choices[:-1])
        description = f"{chosen} ({sparse} sparse)" if sparse else chosen
        faster = [f"{ratio:.2f}" for ratio in ratios.values()]
        rows.append([name, str(batch), *map(str, times.values()), *faster, description])
    return figures, rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--width", type=float, default=1.0, help="width of the networks")
    arguments.add_argument("--steps", type=int, default=50, help="steps of training")
    arguments.add_argument("--only", choices=("weights", "channels"), help="measure one granularity, and keep the rest")
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the figures to")
    given = arguments.parse_args()
    for category in (flipout.UnfinishedWarning, flipout.DeadLayerWarning):
        warnings.simplefilter("ignore", category)
    console = Console(width=150)
    results: Figures = json.loads(given.out.read_text()) if given.only and given.out.exists() else {}
    milliseconds = Table(
        *("network", "batch", "dense ms", "compacted ms", "accelerated ms", "dense / compacted", "dense / accelerated"),
        "chosen",
    )
    with cifar10() as (train_set, test_set):
        run = given.width, given.steps

        def add(name: str, model: nn.Module) -> bool:
            """Measure a network; return whether a path is left from its input to its output."""
            with console.status(f"{name}: measuring"):
                figures, rows = measure(name, model, test_set)
            for figure, numbers in figures.items():
                results.setdefault(figure, {}).update({key: round(number, 4) for key, number in numbers.items()})
            for row in rows:
                milliseconds.add_row(*row)
            return figures["effective_weights"][name] > 0

        for network in NETWORKS:
            for sparsity in SPARSITIES if given.only != "channels" else ():
                for name, floor in ((f"{network}-{sparsity}", 0), (f"{network}-{sparsity}-floor", FLOOR)):
                    if add(name, trained(network, sparsity, *run, floor, train_set)):
                        break
            for sparsity in CHANNEL_SPARSITIES if given.only != "weights" else ():
                add(f"{network}-channel-{sparsity}", trained_in_channels(network, sparsity, *run, train_set))
    write_json(given.out, results)
    console.print(milliseconds)
    console.print(table(results))
    if dead := [name for name, live in results["effective_weights"].items() if not live]:
        console.print(f"no path is left from input to output in {', '.join(dead)}: their latencies are meaningless")


def table(results: Figures) -> Table:
    """Return the table of counts for each network; latencies have their own table."""
    counted = {figure: numbers for figure, numbers in results.items() if not figure.startswith("latency")}
    drawn = Table("network", *counted)
    for name in results["nonzero_weights"]:
        drawn.add_row(
            name,
            *(
                f"{numbers[name]:,.4g}" if numbers[name] < 1e3 else f"{numbers[name]:,.0f}"
                for numbers in counted.values()
            ),
        )
    return drawn


if __name__ == "__main__":
    main()

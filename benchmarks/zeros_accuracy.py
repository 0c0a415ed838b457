"""`python -m benchmarks.zeros_accuracy`: whether sparse kernels change the accuracy, and whether fewer gradients would.

Each network is trained by the lab with FlipOut's second chances, three seeds: densely, with sparse kernels in all
layers, and with the gradients of pruned weights in every k-th step only, multiplied with k. The last is an experiment.
Hidden values need the gradients of pruned weights, and those are the part of a step that sparse kernels compute
densely. It is tried here with dense layers, whose gradients are set to 0 in the other steps.

The accuracies are written to benchmarks/zeros_accuracy.json as `{network: {training: [one for each seed]}}` after
each training. Trainings that are there already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from torch import Tensor

import flipout
from flipout.kernels import speed_table
from flipout_lab.files import write_json
from flipout_lab.runs import training
from flipout_lab.runs.pruning import attach
from flipout_lab.runs.settings import make_settings

OUT = Path(__file__).with_name("zeros_accuracy.json")
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet10-digits": {"model": "resnet10", "width": 0.25, "data": "digits", "epochs": 20, "sparsity": 0.98},
    "lenet-300-100-mnist": {"model": "lenet-300-100", "epochs": 3, "batch_size": 256, "sparsity": 0.99},
}
SEEDS = 0, 1, 2
INTERVALS = 4, 10

Accuracies = dict[str, dict[str, list[float]]]


@contextmanager
def gradients_in_every(interval: int) -> Iterator[None]:
    """Let pruned weights learn in every so many steps only, from gradients that are as many times as large."""

    def attached(*arguments: Any) -> flipout.Pruner:
        pruner = attach(*arguments)
        for weight in pruner.weights:
            weight.parameter.register_hook(_thinned(pruner, weight.name, interval))
        return pruner

    with mock.patch.object(training, "attach", attached):
        yield


def _thinned(pruner: flipout.Pruner, name: str, interval: int) -> Callable[[Tensor], Tensor]:
    def hook(gradient: Tensor) -> Tensor:
        factor = 0 if pruner.step % interval else interval
        return torch.where(pruner.masks[name], gradient, factor * gradient)

    return hook


def accuracy(name: str, seed: int, *, sparse_kernels: bool = False) -> float:
    """The accuracy of the last epoch on the test set."""
    settings = make_settings(**NETWORKS[name], seed=seed, sparse_kernels=sparse_kernels, shrink=False, threads=1)
    limits = mock.patch.object(speed_table, "remembered", return_value=speed_table.DENSITIES[-1])  # whatever its speed
    with tempfile.TemporaryDirectory() as folder, limits:
        result = training.train(settings, folder)
    assert bool(result["sparse_layers"]) == sparse_kernels
    return float(result["test_accuracy"])


def in_every(interval: int, name: str, seed: int) -> float:
    with gradients_in_every(interval):
        return accuracy(name, seed)


WAYS: dict[str, Callable[[str, int], float]] = {
    "dense": accuracy,
    "sparse kernels": partial(accuracy, sparse_kernels=True),
    **{f"gradients of pruned weights in every {each}th step": partial(in_every, each) for each in INTERVALS},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the accuracies to")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    results: Accuracies = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in NETWORKS:
        for way, train in WAYS.items():
            found = results.setdefault(name, {}).setdefault(way, [])
            for seed in SEEDS[len(found) :]:
                found.append(train(name, seed))
                write_json(given.out, results)
            each = ", ".join(f"{number:.2%}" for number in found)
            Console().print(f"{name}, {way}: {each}, mean {fmean(found):.2%}")


if __name__ == "__main__":
    main()

"""`make bench-zeros`: what scattered zeros are worth on a CPU, in inference and in training.

VGG19 and ResNet18 at their full width. Inference is measured on one thread, with weights that FlipOut pruned in a short
training: the dense network, in the faster of both memory layouts, and onnxruntime on it, against `export.accelerate`.
Training is measured with batches of 128, as `make bench-train` does it: the schedule of a training, with prunings until
20 % of it, is compressed into `--steps` steps, and every third step is timed right after one of the dense network. A
whole step is forward, backward, optimizer and pruner. From the ratios follows the time of a training of 30 epochs.

The ratios are written to benchmarks/zeros.json as `{figure: {network-sparsity: number}}`.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.export.formats import open_session, run_session
from flipout.export.timing import time_interleaved
from flipout.kernels import SparseKernels
from flipout.shrinking import shrinker
from flipout_lab import build
from flipout_lab.files import write_json

from .export import FLOOR
from .shrinking import BATCH, NETWORKS, REAL_STEPS, Training, images_and_labels, train

OUT = Path(__file__).with_name("zeros.json")
INFERENCE_SPARSITIES = (0.8, 0.9, 0.95, 0.99, 0.999)
BATCHES = {1: 25, 32: 9}  # batch size: repetitions of each timing
SHORT_BATCH, CALIBRATED = 32, 10
TRAININGS = (
    ("", "permanent, early end", False, (0.9, 0.95, 0.99)),
    ("", "permanent, early end", True, (0.999,)),
    ("-second-chances", "default", False, (0.99,)),
)
"""What is added to the name of a figure, how weights are pruned, whether the network is shrunk, and the sparsities."""

Figures = dict[str, dict[str, float]]
Batches = Iterator[tuple[Tensor, Tensor]]


class SparseTraining(Training):
    """A training whose pruned layers compute with sparse kernels."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kernels = SparseKernels(self.pruner)
        self.update_seconds: list[float] = []
        self._update = self.kernels.update
        self.kernels.update = self._timed_update  # type: ignore[method-assign]

    def _timed_update(self) -> None:
        start = time.perf_counter()
        self._update()
        self.update_seconds.append(time.perf_counter() - start)

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Train with a batch; return the seconds without those of a pruning and of what follows it."""
        before = len(self.update_seconds)
        return super().step(images, labels) - sum(self.update_seconds[before:])

    def shrink(self, images: Tensor) -> bool:
        if not self.shrinks or not self.pruner.worth_shrinking:
            return False
        with self.kernels.paused():
            return super().shrink(images)

    def step_ratios(self) -> list[float]:
        """The time of each step over that of a dense one: that of the last step that was timed."""
        ratios, last = [], next(iter(self.ratios.values()))
        for number in range(self.steps):
            last = self.ratios.get(number, last)
            ratios.append(last)
        return ratios

    def whole(self, dense_step: float) -> float:
        """The time of a training over that of a dense one, with the measurement of the table and all prunings."""
        table, *updates = self.update_seconds
        once = table + statistics.median_high(updates[: len(self.pruner.events)] or [0.0]) * self.prunings
        return super().whole(dense_step) + once / (REAL_STEPS * dense_step)


def pruned_network(network: str, sparsity: float, width: float, steps: int, batches: Batches) -> nn.Module:
    """A network that FlipOut pruned in a short training, with updated statistics of its norms."""
    torch.manual_seed(0)
    model = build(network, width=width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    floor = FLOOR if width == 1 else 0
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=sparsity, steps=steps, floor=floor, compile=False)
    for _ in range(steps):
        x, y = next(batches)
        nn.functional.cross_entropy(model(x[:SHORT_BATCH]), y[:SHORT_BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    pruner.remove()
    with torch.no_grad():
        for _ in range(CALIBRATED):
            model(next(batches)[0][:SHORT_BATCH])
    return model.eval()


@torch.no_grad()
def inference(name: str, model: nn.Module, images: Tensor, sizes: Sequence[int]) -> Figures:
    """The time of the dense network, and of onnxruntime on it, over that of the accelerated one, on one thread."""
    figures: Figures = {"inference_dense_over_sparse": {}, "inference_onnxruntime_over_sparse": {}}
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        export.to_onnx(model, Path(folder, "dense.onnx"), images[:1])
        session = open_session(Path(folder, "dense.onnx"))
        for size in sizes:
            x, repetitions = images[:size].contiguous(), BATCHES[size]
            x_last = x.contiguous(memory_format=torch.channels_last)
            fast = export.accelerate(model, x, repetitions=repetitions)
            works = {
                "dense": partial(model, x),
                "channels last": partial(last, x_last),
                "onnxruntime": partial(run_session, session, (x,)),
                "sparse": partial(fast, x),
            }
            times = {work: timing.median for work, timing in time_interleaved(works, repetitions).items()}
            dense, key = min(times["dense"], times["channels last"]), f"{name}-batch{size}"
            figures["inference_dense_over_sparse"][key] = dense / times["sparse"]
            figures["inference_onnxruntime_over_sparse"][key] = times["onnxruntime"] / times["sparse"]
    return figures


def training(
    ours: SparseTraining, dense: Training, batches: Batches, say: Callable[[str], None]
) -> tuple[float, float]:
    """The time of the last steps and of a whole training of the dense network, over those with sparse kernels."""
    seconds = train(ours, dense, batches, say)
    lasting = [ratio for step, ratio in ours.ratios.items() if 3 * step >= 2 * ours.steps]
    result = 1 / statistics.median(lasting), 1 / ours.whole(seconds)
    ours.kernels.remove()
    ours.pruner.remove()
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--width", type=float, default=1.0, help="width of the networks")
    arguments.add_argument("--steps", type=int, default=40, help="steps that a training is compressed into")
    arguments.add_argument("--batch", type=int, default=BATCH, help="images of a batch")
    arguments.add_argument("--networks", nargs="+", default=NETWORKS, help="networks to measure")
    arguments.add_argument("--only", choices=("inference", "training"), help="measure one of them, and keep the rest")
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the figures to")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    # A shrink must be worth its cost in the long training, not in the few steps that are taken here.
    shrinker.FIXED_COST *= given.steps / REAL_STEPS
    shrinker.COST_PER_WEIGHT *= given.steps / REAL_STEPS
    console, batches, threads = Console(width=120), images_and_labels(given.batch), torch.get_num_threads()
    results: Figures = json.loads(given.out.read_text()) if given.only and given.out.exists() else {}

    def add(figures: Figures) -> None:
        for figure, numbers in figures.items():
            results.setdefault(figure, {}).update({key: round(number, 3) for key, number in numbers.items()})
            console.print(figure, numbers)
        write_json(given.out, results)

    if given.only != "training":
        torch.set_num_threads(1)
        images = torch.cat([next(batches)[0] for _ in range(-(-max(BATCHES) // given.batch))])
        for network, sparsity in product(given.networks, INFERENCE_SPARSITIES):
            model = pruned_network(network, sparsity, given.width, given.steps, batches)
            add(inference(f"{network}-{sparsity}", model, images, list(BATCHES)))
        torch.set_num_threads(threads)
    if given.only != "inference":
        for network in given.networks:
            dense = Training(network, given.width, "dense", 0.0, given.steps, shrinks=False)
            for suffix, method, shrinks, sparsities in TRAININGS:
                for sparsity in sparsities:
                    name = f"{network}-{sparsity}{suffix}"
                    ours = SparseTraining(network, given.width, method, sparsity, given.steps, shrinks=shrinks)
                    step, whole = training(ours, dense, batches, partial(console.print, name))
                    add({"train_step_dense_over_sparse": {name: step}, "train_time_dense_over_sparse": {name: whole}})


if __name__ == "__main__":
    main()

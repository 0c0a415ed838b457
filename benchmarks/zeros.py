"""`make bench-zeros`: what scattered zeros are worth on a CPU, in inference and in training.

VGG19 and ResNet18 at their full width. Where the zeros are decides as much as how many there are: each row is measured
with weights that are ranked over the whole network, which leaves the first layers nearly dense, and with the same
sparsity in every layer (`-layer` in its name). Inference is measured on one thread, with weights that FlipOut pruned in
a short training: the dense network, in the faster of both memory layouts, and onnxruntime on it, against
`export.accelerate`. Training is measured with batches of 128, as `make bench-train` does it: the schedule of a
training, with prunings until 20 % of it, is compressed into `--steps` steps, and some of them are timed, each right
after one of the dense network. A whole step is forward, backward, optimizer and pruner. From the ratios follows the
time of a training of 30 epochs.

The ratios are written to benchmarks/zeros.json as `{figure: {network-sparsity: number}}` after each row, and drawn at
the end. `--resume` keeps the rows that are there. `--only real` trains for one epoch with and without sparse kernels,
as `flipout train` does, on half of the channels; it takes about ten minutes more.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.export.formats import open_session, run_session
from flipout.export.timing import time_interleaved
from flipout.shrinking import shrinker
from flipout_lab import build
from flipout_lab.files import write_json
from flipout_lab.runs import training as lab_training
from flipout_lab.runs.settings import make_settings

from .export import FLOOR
from .shrinking import BATCH, EARLY_END, NETWORKS, REAL_STEPS, Training, images_and_labels, train
from .zeros_figures import PICTURE, draw, tables

Scope = Literal["global", "layer"]

OUT = Path(__file__).with_name("zeros.json")
INFERENCE_SPARSITIES = (0.8, 0.9, 0.95, 0.99, 0.999)
BATCHES = {1: 15, 32: 5}  # batch size: repetitions of each timing
SHORT_BATCH, STEPS_OF_A_SPARSITY, CALIBRATED = 32, 8, 10
EARLY, DEFAULT, DEFAULT_EARLY = "permanent, early end", "default", "default, early end"
SCOPES: dict[str, Scope] = {"": "global", "-layer": "layer"}  # what is added to a name: what weights are ranked over
TRAININGS = (
    ("resnet18", "", EARLY, False, (0.9, 0.95, 0.99)),
    ("resnet18", "", EARLY, True, (0.999,)),
    ("resnet18", "-second-chances", DEFAULT, False, (0.99,)),
    ("resnet18", "-second-chances-early", DEFAULT_EARLY, False, (0.99,)),
    ("resnet18", "-layer", EARLY, False, (0.9, 0.95, 0.99)),
    ("vgg19", "", EARLY, False, (0.95, 0.99)),
    ("vgg19", "", EARLY, True, (0.999,)),
    ("vgg19", "-layer", EARLY, False, (0.95, 0.99)),
)
"""The network, what is added to its name, how weights are pruned, whether it is shrunk, and the sparsities."""
REAL_RUN: dict[str, Any] = {
    **{"model": "resnet18", "width": 0.5, "epochs": 1, "method": "magnitude", "sparsity": 0.95, "end": EARLY_END},
    **{"shrink": False},
}

Figures = dict[str, dict[str, float]]
Batches = Iterator[tuple[Tensor, Tensor]]


class SparseTraining(Training):
    """A training whose pruned layers compute with sparse kernels."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, sparse_kernels=True, **options)
        self.early = arguments[2] == EARLY
        self.update_seconds: list[float] = []
        self._update = self.pruner.sparse_kernels.update
        self.pruner.sparse_kernels.update = self._timed_update  # type: ignore[method-assign]

    def _timed_update(self) -> None:
        start = time.perf_counter()
        self._update()
        self.update_seconds.append(time.perf_counter() - start)

    def is_timed(self, number: int) -> bool:
        """With an early end, the steps until then and a few of the others, which are all alike."""
        if not self.early:
            return super().is_timed(number)
        return number <= EARLY_END * self.steps or number % 5 == 0 or number == self.steps - 1

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Train with a batch; return the seconds without those of a pruning and of what follows it."""
        before = len(self.update_seconds)
        return super().step(images, labels) - sum(self.update_seconds[before:])

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


def pruned_networks(network: str, width: float, scope: Scope, batches: Batches) -> Iterator[tuple[float, nn.Module]]:
    """A network that FlipOut prunes further and further, a few steps for each sparsity.

    The statistics of its norms are updated after each pruning.
    """
    torch.manual_seed(0)
    model = build(network, width=width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    floor, steps = FLOOR if width == 1 and scope == "global" else 0, STEPS_OF_A_SPARSITY
    options: dict[str, Any] = {"scope": scope, "floor": floor, "steps": steps, "compile": False}
    for sparsity in INFERENCE_SPARSITIES:
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=sparsity, **options)
        for _ in range(steps):
            x, y = next(batches)
            nn.functional.cross_entropy(model(x[:SHORT_BATCH]), y[:SHORT_BATCH]).backward()
            optimizer.step()
            optimizer.zero_grad()
        pruner.remove()
        with torch.no_grad():
            for _ in range(CALIBRATED):
                model(next(batches)[0][:SHORT_BATCH])
        yield sparsity, copy.deepcopy(model).eval()


@contextmanager
def onnx_session(model: nn.Module, images: Tensor) -> Iterator[Any]:
    """A session of onnxruntime on a dense network; its time does not depend on the weights."""
    with tempfile.TemporaryDirectory() as folder:
        export.to_onnx(model, Path(folder, "dense.onnx"), images[:1])
        yield open_session(Path(folder, "dense.onnx"))


@torch.no_grad()
def inference(name: str, model: nn.Module, session: Any, images: Tensor, size: int) -> Figures:
    """The time of the dense network, and of onnxruntime on it, over that of the accelerated one, on one thread."""
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, repetitions = images[:size].contiguous(), BATCHES[size]
    works = {
        "dense": partial(model, x),
        "channels last": partial(last, x.contiguous(memory_format=torch.channels_last)),
        "onnxruntime": partial(run_session, session, (x,)),
        "sparse": partial(export.accelerate(model, x, repetitions=repetitions), x),
    }
    times = {work: timing.median for work, timing in time_interleaved(works, repetitions).items()}
    dense = min(times["dense"], times["channels last"])
    return {
        "inference_dense_over_sparse": {name: dense / times["sparse"]},
        "inference_onnxruntime_over_sparse": {name: times["onnxruntime"] / times["sparse"]},
    }


def training(name: str, ours: SparseTraining, dense: Training, batches: Batches, say: Callable[[str], None]) -> Figures:
    """The time of the last steps and of a whole training of the dense network, over those with sparse kernels."""
    seconds = train(ours, dense, batches, say)
    lasting = [ratio for step, ratio in ours.ratios.items() if 3 * step >= 2 * ours.steps]
    say(f"{len(ours.pruner.sparse_kernels.layers)} of {len(ours.pruner.weights)} layers are sparse")
    ours.pruner.remove()
    return {
        "train_step_dense_over_sparse": {name: 1 / statistics.median(lasting)},
        "train_time_dense_over_sparse": {name: 1 / ours.whole(seconds)},
    }


def real_run(settings: dict[str, Any]) -> Figures:
    """The seconds of a training by the lab with dense layers, and with sparse kernels."""
    found = {}
    for kind, sparse_kernels in (("dense", False), ("sparse", True)):
        with tempfile.TemporaryDirectory() as folder:
            result = lab_training.train(make_settings(**settings, sparse_kernels=sparse_kernels), folder)
        found[kind] = {"seconds": float(result["seconds"]), "accuracy": float(result["test_accuracy"])}
    ratio = found["dense"]["seconds"] / found["sparse"]["seconds"]
    return {"real_run_dense": found["dense"], "real_run_sparse": found["sparse"], "real_run": {"dense/sparse": ratio}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--width", type=float, default=1.0, help="width of the networks")
    arguments.add_argument("--steps", type=int, default=30, help="steps that a training is compressed into")
    arguments.add_argument("--batch", type=int, default=BATCH, help="images of a batch")
    arguments.add_argument("--networks", nargs="+", default=NETWORKS, help="networks to measure")
    arguments.add_argument("--only", choices=("inference", "training", "real", "figures"), help="do one of them")
    arguments.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    arguments.add_argument("--out", type=Path, default=OUT, help="file to write the figures to")
    arguments.add_argument("--picture", type=Path, default=PICTURE, help="file to draw the figures into")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    # A shrink must be worth its cost in the long training, not in the few steps that are taken here.
    shrinker.FIXED_COST *= given.steps / REAL_STEPS
    shrinker.COST_PER_WEIGHT *= given.steps / REAL_STEPS
    console, batches, threads = Console(width=120), images_and_labels(given.batch), torch.get_num_threads()
    keeps = (given.resume or given.only) and given.out.exists()
    results: Figures = json.loads(given.out.read_text()) if keeps else {}

    def is_done(figure: str, name: str) -> bool:
        return given.resume and name in results.get(figure, {})

    def add(figures: Figures) -> None:
        for figure, numbers in figures.items():
            results.setdefault(figure, {}).update({key: round(number, 3) for key, number in numbers.items()})
            console.print(figure, numbers)
        write_json(given.out, results)

    def measure_inference(network: str, suffix: str, sizes: Sequence[int]) -> None:
        names = [f"{network}-{sparsity}{suffix}-batch{size}" for sparsity in INFERENCE_SPARSITIES for size in sizes]
        if all(is_done("inference_dense_over_sparse", name) for name in names):
            return
        images = torch.cat([next(batches)[0] for _ in range(-(-max(sizes) // given.batch))])
        torch.set_num_threads(1)
        with onnx_session(build(network, width=given.width).eval(), images) as session:
            torch.set_num_threads(threads)
            for sparsity, model in pruned_networks(network, given.width, SCOPES[suffix], batches):
                if not export.effective_weights(model, images[:1]).effective:
                    console.print(f"{network}-{sparsity}{suffix}: no path from the input to the output is left")
                    continue
                torch.set_num_threads(1)
                for size in sizes:
                    name = f"{network}-{sparsity}{suffix}-batch{size}"
                    if not is_done("inference_dense_over_sparse", name):
                        add(inference(name, model, session, images, size))
                torch.set_num_threads(threads)

    def measure_training(network: str) -> None:
        dense = Training(network, given.width, "dense", 0.0, given.steps, shrinks=False)
        for each, suffix, method, shrinks, sparsities in TRAININGS:
            for sparsity in sparsities if each == network else ():
                name = f"{network}-{sparsity}{suffix}"
                if not is_done("train_step_dense_over_sparse", name):
                    scope = SCOPES["-layer" if suffix.startswith("-layer") else ""]
                    ours = SparseTraining(
                        network, given.width, method, sparsity, given.steps, shrinks=shrinks, scope=scope
                    )
                    add(training(name, ours, dense, batches, partial(console.print, name)))

    for network in given.networks:
        for suffix in SCOPES if given.only in (None, "inference") else ():
            measure_inference(network, suffix, list(BATCHES))
        if given.only in (None, "training"):
            measure_training(network)
    if given.only == "real":
        add(real_run(REAL_RUN))
    draw(given.picture, results)
    console.print(tables(results), highlight=False)


if __name__ == "__main__":
    main()

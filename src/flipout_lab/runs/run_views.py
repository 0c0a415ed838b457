"""The progress of a run on the console."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import nn

from flipout.layers import find_layers
from flipout.schedules import Pruning

from .method_options import shown
from .run_folder import RESULT, read_config, read_metrics, read_result

REFRESH = 0.1


class View(Protocol):
    """Shows the progress of a run: its start, its steps and its epochs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self, name: str, steps: int, step: int) -> None: ...
    def step(self, step: int) -> None: ...
    def epoch(self, metrics: Mapping[str, Any]) -> None: ...


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, name: str, steps: int, step: int) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        pass


class Lines(Quiet):
    """Prints one line for each epoch, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, name: str, steps: int, step: int) -> None:
        self.console.print(f"{name}: step {step:,} of {steps:,}", soft_wrap=True, highlight=False, markup=False)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.console.print(epoch_line(metrics), soft_wrap=True, highlight=False, markup=False)


class Bar(Quiet):
    """A progress bar with the metrics of the last epoch."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, expand=True)
        self.shown = 0.0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, name: str, steps: int, step: int) -> None:
        self.task = self.progress.add_task(name, total=steps, completed=step, latest="")

    def step(self, step: int) -> None:
        now = time.monotonic()
        if now - self.shown > REFRESH:
            self.shown = now
            self.progress.update(self.task, completed=step)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.progress.update(self.task, completed=metrics["step"], latest=epoch_line(metrics))


def epoch_line(metrics: Mapping[str, Any]) -> str:
    """Return the metrics of an epoch in one line."""
    accuracy = metrics["test_accuracy"] if metrics["test_accuracy"] is not None else metrics["validation_accuracy"]
    return (
        f"epoch {metrics['epoch']}  loss {metrics['loss']:.4f}  accuracy {accuracy:.2%}  "
        f"sparsity {metrics['sparsity']:.2%}  rate {metrics['learning_rate']:.3g}{_work(metrics)}"
    )


def _work(metrics: Mapping[str, Any]) -> str:
    """The weights that the network computes with, and the seconds of the epoch."""
    if "computed" not in metrics:  # an epoch of an earlier version
        return ""
    return f"  computes with {metrics['computed']:,} weights  {metrics['epoch_seconds']:.1f} s"


def view_for(console: Console, quiet: bool) -> View:
    """Return a progress bar for a terminal, lines for anything else, or nothing if quiet."""
    if quiet:
        return Quiet()
    return Bar(console) if console.is_terminal else Lines(console)


EPOCHS_SHOWN = 12


def prunable_weights(model: nn.Module) -> int:
    """Return the number of prunable weights of a network."""
    optimizer = torch.optim.SGD(model.parameters())
    return sum(layer.weight.numel() for layer in find_layers(model, optimizer, None, None))


def accuracy_of(result: Mapping[str, Any]) -> tuple[str, float]:
    """Return which accuracy a run has, on test or validation data, and its value."""
    kind = "test" if result["test_accuracy"] is not None else "validation"
    return f"{kind} accuracy", float(result[f"{kind}_accuracy"])


def result_table(result: Mapping[str, Any]) -> Table:
    """Return the result of a run as a table."""
    kind, accuracy = accuracy_of(result)
    table = Table(show_header=False)
    rows: list[tuple[str, str | Text]] = [
        ("run", f"{result['method']} on {Path(result['data']).name}, {result['model']}, seed {result['seed']}"),
        ("epochs", f"{result['epochs']}, in {result['seconds']:.1f} s"),
        ("weights kept", f"{result['nonzero']:,} of {result['prunable']:,}"),
        ("of them on a live path", "not known" if result["effective"] is None else f"{result['effective']:,}"),
        ("sparsity", f"{result['sparsity']:.4%}"),
        *_shrunk(result),
        (f"{kind}, {result['accuracy_of']}", Text(f"{accuracy:.2%}", style="bold")),
    ]
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def _shrunk(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How small the network was at the end of training, if it was shrunk."""
    if shrinks := result.get("shrinks"):
        times = "once" if len(shrinks) == 1 else f"{len(shrinks)} times"
        share = f"{shrinks[-1]['share']:.1%} of the multiply-adds"
        yield "shrunk while training", f"{times}, to {result['computed']:,} weights, {share}"


def plan_table(title: str, plan: Sequence[Pruning], steps_per_epoch: int) -> Table:
    """Return every pruning of a plan as a row, with its epoch."""
    table = Table(title=Text(title))
    for column in ("pruning", "step", "epoch", "sparsity", "weights kept"):
        table.add_column(column, justify="right")
    for number, (step, sparsity, kept) in enumerate(plan, 1):
        outcome = ("an outcome", "an outcome") if sparsity is None else (f"{sparsity:.4%}", f"{kept:,}")
        table.add_row(str(number), f"{step:,}", f"{step / steps_per_epoch:.4g}", *outcome)
    return table


def run_tables(folder: Path) -> Iterator[Table | Text]:
    """Return the settings, the versions, the epochs, the layers and the result of a run."""
    config = read_config(folder)
    settings = {key: value for key, value in config["settings"].items() if value is not None}
    yield Text(", ".join(f"{key} {shown(value)}" for key, value in settings.items()), style="dim")
    yield Text(", ".join(f"{name} {value}" for name, value in config["versions"].items()), style="dim")
    metrics = read_metrics(folder)
    yield _epochs(metrics)
    if not (folder / RESULT).exists():
        yield Text(
            f"not finished: {len(metrics)} epochs are done; run the same command again to resume", style="yellow"
        )
        return
    result = read_result(folder)
    yield _layers(result)
    if result["dead_layers"]:
        yield Text(f"dead layers: {', '.join(result['dead_layers'])}", style="red")
    yield result_table(result)


def _epochs(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Return some of the epochs, evenly spread, and the last."""
    table = Table(title="epochs")
    for column in ("epoch", "loss", "accuracy", "sparsity", "learning rate", "flips", "computes with", "seconds"):
        table.add_column(column, justify="right")
    every = max(1, -(-len(metrics) // EPOCHS_SHOWN))
    for line in [line for line in metrics if line["epoch"] % every == 0 or line is metrics[-1]]:
        table.add_row(
            str(line["epoch"]),
            f"{line['loss']:.4f}",
            f"{accuracy_of(line)[1]:.2%}",
            f"{line['sparsity']:.4%}",
            f"{line['learning_rate']:.3g}",
            "" if line["flips"] is None else f"{line['flips']:,}",
            f"{line['computed']:,}" if "computed" in line else "",
            f"{line['seconds']:.1f}",
        )
    return table


def _layers(result: Mapping[str, Any]) -> Table:
    table = Table("layer", title="layers")
    for column in ("weights", "kept", "sparsity"):
        table.add_column(column, justify="right")
    for name, layer in result["layers"].items():
        share = 1 - layer["kept"] / layer["weights"] if layer["weights"] else 0.0
        table.add_row(Text(name), f"{layer['weights']:,}", f"{layer['kept']:,}", f"{share:.2%}")
    return table

"""The progress of a run on the console."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text
from torch import nn

from flipout.summary import Plan
from flipout.weights import find_weights

from ..tables import Bold, Table
from .method_options import shown
from .run_folder import RESULT, accuracy_in, read_config, read_metrics, read_result

REFRESH = 0.1


class View:
    """Shows the progress of a run: its start, its steps and its epochs. This one shows nothing."""

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


class Lines(View):
    """Prints one line for each epoch, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, name: str, steps: int, step: int) -> None:
        self.console.print(f"{name}: step {step:,} of {steps:,}", soft_wrap=True, highlight=False, markup=False)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.console.print(epoch_line(metrics), soft_wrap=True, highlight=False, markup=False)


class Bar(View):
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
    return (
        f"epoch {metrics['epoch']}  loss {metrics['loss']:.4f}  accuracy {accuracy_in(metrics):.2%}  "
        f"sparsity {metrics['sparsity']:.2%}  rate {metrics['learning_rate']:.3g}  "
        f"computes with {metrics['computed']:,} weights  {metrics['epoch_seconds']:.1f} s"
    )


def view_for(console: Console, quiet: bool) -> View:
    """Return a progress bar for a terminal, lines for anything else, or nothing if quiet."""
    if quiet:
        return View()
    return Bar(console) if console.is_terminal else Lines(console)


EPOCHS_SHOWN = 12


def prunable_weights(model: nn.Module) -> int:
    return sum(weight.size for weight in find_weights(model, None, None, None))


def result_table(result: Mapping[str, Any]) -> Table:
    kind = "test" if result["test_accuracy"] is not None else "validation"
    rows = [
        ("run", f"{result['method']} on {Path(result['data']).name}, {result['model']}, seed {result['seed']}"),
        ("epochs", f"{result['epochs']}, in {result['seconds']:.1f} s"),
        ("weights kept", f"{result['nonzero']:,} of {result['prunable']:,}"),
        ("of them on a live path", "not known" if result["effective"] is None else f"{result['effective']:,}"),
        ("sparsity", f"{result['sparsity']:.4%}"),
    ]
    products = result["multiply_adds"]
    share = products["nonzero"] / max(1, products["dense"])
    rows.append(("multiply-adds kept", f"{products['nonzero']:,} of {products['dense']:,} ({share:.1%})"))
    if shrinks := result.get("shrinks"):
        times = "once" if len(shrinks) == 1 else f"{len(shrinks)} times"
        share = f"{shrinks[-1]['share']:.1%} of the multiply-adds"
        rows.append(("shrunk while training", f"{times}, to {result['computed']:,} weights, {share}"))
    if layers := result.get("sparse_layers"):
        rows.append(("with sparse kernels", f"{len(layers)} of {len(result['layers'])} layers: {', '.join(layers)}"))
    rows.append((f"{kind} accuracy, {result['accuracy_of']}", Bold(f"{accuracy_in(result):.2%}")))
    return Table("", (), rows, texts=(0, 1))


def plan_table(title: str, plan: Plan, steps_per_epoch: int) -> Table:
    rows = []
    for number, (step, sparsity, kept) in enumerate(plan, 1):
        shares = (
            "an outcome" if sparsity is None else f"{sparsity:.4%}",
            "an outcome" if kept is None else f"{kept:,}",
        )
        rows.append((str(number), f"{step:,}", f"{step / steps_per_epoch:.4g}", *shares))
    sparsity_of = "sparsity" if plan.target == "weights" else f"{plan.target} pruned"
    return Table(title, ("pruning", "step", "epoch", sparsity_of, "weights kept"), rows, texts=())


def run_tables(folder: Path) -> Iterator[RichTable | Text]:
    """Return the settings, the versions, the epochs, the layers and the result of a run, for the console."""
    config = read_config(folder)
    settings = {key: value for key, value in config["settings"].items() if value is not None}
    yield Text(", ".join(f"{key} {shown(value)}" for key, value in settings.items()), style="dim")
    yield Text(", ".join(f"{name} {value}" for name, value in config["versions"].items()), style="dim")
    metrics = read_metrics(folder)
    if metrics:
        yield _epochs(metrics).rich()
    if not (folder / RESULT).exists():
        message = f"not finished: {len(metrics)} epochs are done; run the same command again to resume"
        yield Text(message, style="yellow")
        return
    result = read_result(folder)
    rows = [
        (name, f"{each['weights']:,}", f"{each['kept']:,}", f"{1 - each['kept'] / max(1, each['weights']):.2%}")
        for name, each in result["layers"].items()
    ]
    yield Table("layers", ("layer", "weights", "kept", "sparsity"), rows).rich()
    if result["dead_layers"]:
        yield Text(f"dead layers: {', '.join(result['dead_layers'])}", style="red")
    yield result_table(result).rich()


def _epochs(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Return some of the epochs, evenly spread, and the last."""
    every = max(1, -(-len(metrics) // EPOCHS_SHOWN))
    rows = [
        (
            f"{line['epoch']}",
            f"{line['loss']:.4f}",
            f"{accuracy_in(line):.2%}",
            f"{line['sparsity']:.4%}",
            f"{line['learning_rate']:.3g}",
            "" if line["flips"] is None else f"{line['flips']:,}",
            f"{line['computed']:,}",
            f"{line['seconds']:.1f}",
        )
        for line in metrics
        if line["epoch"] % every == 0 or line is metrics[-1]
    ]
    heading = ("epoch", "loss", "accuracy", "sparsity", "learning rate", "flips", "computes with", "seconds")
    return Table("epochs", heading, rows, texts=(), widest=len(heading))

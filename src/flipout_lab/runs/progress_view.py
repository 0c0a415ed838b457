"""The progress of a run on the console."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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

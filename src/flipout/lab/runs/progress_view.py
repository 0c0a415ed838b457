"""What a person sees of a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

REFRESH = 0.1


class View(Protocol):
    """Shown the start of a run, its steps now and then, and its epochs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self, name: str, steps: int, step: int) -> None: ...
    def step(self, step: int) -> None: ...
    def epoch(self, metrics: Mapping[str, Any]) -> None: ...


class Quiet:
    """Nothing at all."""

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
    """One line for each epoch, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, name: str, steps: int, step: int) -> None:
        self.console.print(f"{name}: step {step:,} of {steps:,}", soft_wrap=True, highlight=False)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.console.print(describe(metrics), soft_wrap=True, highlight=False)


class Bar(Quiet):
    """A bar with what the last epoch brought."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[latest]}"),
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
        self.progress.update(self.task, completed=metrics["step"], latest=describe(metrics))


def describe(metrics: Mapping[str, Any]) -> str:
    """An epoch in a line."""
    accuracy = metrics["test_accuracy"] if metrics["test_accuracy"] is not None else metrics["validation_accuracy"]
    return (
        f"epoch {metrics['epoch']}  loss {metrics['loss']:.4f}  accuracy {accuracy:.2%}  "
        f"sparsity {metrics['sparsity']:.2%}  rate {metrics['learning_rate']:.3g}"
    )


def view_for(console: Console, quiet: bool) -> View:
    """A bar on a terminal, lines elsewhere, nothing if asked for."""
    if quiet:
        return Quiet()
    return Bar(console) if console.is_terminal else Lines(console)

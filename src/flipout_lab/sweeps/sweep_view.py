"""The console output of a sweep: one line per finished run, and progress bars for active runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..runs.display import accuracy_of
from ..runs.method_options import shown
from ..runs.progress_view import epoch_line
from ..runs.settings import Settings
from .job import RETRIES, Job, JobUpdate


class SweepView:
    """Print lines, and on a terminal progress bars below them."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
        )
        self.progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self.tasks: dict[str, TaskID] = {}
        self.total = self.ended_runs = 0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, total: int, finished: int) -> None:
        self.total, self.ended_runs = total, finished
        self.print_line(f"{total} runs, {finished} of them already finished")
        self.all = self.progress.add_task("all runs", total=total, completed=finished, latest="")

    def retried(self, job: Job, attempt: int, reason: str) -> None:
        self.print_line(f"{describe_run(job.settings)}: died, retry {attempt - 1} of {RETRIES}: {reason}")

    def step(self, job: Job, progress: Mapping[str, Any]) -> None:
        if job.name not in self.tasks:
            self.tasks[job.name] = self.progress.add_task(describe_run(job.settings), latest="")
        latest: dict[str, Any] = {"latest": epoch_line(progress)} if "loss" in progress else {}
        self.progress.update(self.tasks[job.name], total=progress["steps"], completed=progress["step"], **latest)

    def ended(self, job: Job, update: JobUpdate) -> None:
        if (task := self.tasks.pop(job.name, None)) is not None:
            self.progress.remove_task(task)
        self.ended_runs += 1
        self.progress.update(self.all, completed=self.ended_runs)
        number = f"{self.ended_runs:>{len(str(self.total))}}/{self.total}"
        self.print_line(f"{number} {describe_run(job.settings)}: {_describe_end(update)}")

    def print_line(self, line: str) -> None:
        if not self.quiet:
            self.progress.console.print(Text(line), soft_wrap=True)


def describe_run(settings: Settings) -> str:
    """A run in a few words: the network, the method with its options, the sparsity and the seed."""
    given = [f"{name} {shown(value)}" for name, value in settings.given_options.items()]
    pruned = "" if settings.sparsity is None else f"{settings.sparsity:.4%} pruned"
    return ", ".join(filter(None, [f"{settings.model} {settings.method}", *given, pruned, f"seed {settings.seed}"]))


def _describe_end(update: JobUpdate) -> str:
    if update.kind != "done":
        return f"failed: {update.details['error']}"
    layers = update.details["dead_layers"]
    dead = f", dead layers: {', '.join(layers)}" if layers else ""
    return f"{accuracy_of(update.details)[1]:.2%}, {update.details['seconds']:.0f} s{dead}"


def summary_table(status: Mapping[str, str], reasons: Mapping[str, str]) -> Table:
    """How many runs were done, skipped and failed, with the reasons of the failures."""
    table = Table("runs", "number", "details")
    for kind, details in (
        ("done", "trained now"),
        ("skipped", "finished before"),
        ("failed", "\n".join(f"{name}: {reason}" for name, reason in reasons.items())),
    ):
        count = sum(each == kind for each in status.values())
        style = "red" if kind == "failed" and count else ""
        table.add_row(kind, str(count), Text(details if count else ""), style=style)
    return table

"""What a person sees of a sweep: a line for each run that ends, and bars for those that go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..runs.display import accuracy_of
from ..runs.method_options import shown
from ..runs.progress_view import epoch_line
from ..runs.settings import Settings
from .job import RETRIES, Job, Told


class SweepView:
    """Lines, and on a terminal bars below them."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[latest]}"),
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
        self.say(f"{total} runs, of which {finished} are finished")
        self.all = self.progress.add_task("all runs", total=total, completed=finished, latest="")

    def retried(self, job: Job, attempt: int, reason: str) -> None:
        self.say(f"{told_as(job.settings)}: died and is tried again, {attempt - 1} of {RETRIES} times: {reason}")

    def step(self, job: Job, about: Mapping[str, Any]) -> None:
        if job.name not in self.tasks:
            self.tasks[job.name] = self.progress.add_task(told_as(job.settings), latest="")
        latest: dict[str, Any] = {"latest": epoch_line(about)} if "loss" in about else {}
        self.progress.update(self.tasks[job.name], total=about["steps"], completed=about["step"], **latest)

    def ended(self, job: Job, told: Told) -> None:
        if (task := self.tasks.pop(job.name, None)) is not None:
            self.progress.remove_task(task)
        self.ended_runs += 1
        self.progress.update(self.all, completed=self.ended_runs)
        self.say(f"{self.ended_runs:>{len(str(self.total))}}/{self.total} {told_as(job.settings)}: {_came_to(told)}")

    def say(self, line: str) -> None:
        if not self.quiet:
            self.progress.console.print(line, soft_wrap=True, highlight=False, markup=False)


def told_as(settings: Settings) -> str:
    """A run in a few words: what is pruned how, and what its method was given besides."""
    given = [f"{name} {shown(value)}" for name, value in settings.given_options.items()]
    pruned = "" if settings.sparsity is None else f"{settings.sparsity:.4%} pruned"
    return ", ".join(filter(None, [f"{settings.model} {settings.method}", *given, pruned, f"seed {settings.seed}"]))


def _came_to(told: Told) -> str:
    if told.kind != "done":
        return f"failed: {told.about['error']}"
    dead = f", dead: {', '.join(told.about['dead_layers'])}" if told.about["dead_layers"] else ""
    return f"{accuracy_of(told.about)[1]:.2%}, {told.about['seconds']:.0f} s{dead}"


def summary_table(status: Mapping[str, str], reasons: Mapping[str, str]) -> Table:
    """How many runs were done, failed and skipped, and why they failed."""
    table = Table("runs", "number", "which, and why")
    for kind, about in (
        ("done", "trained now"),
        ("skipped", "finished before"),
        ("failed", escape("\n".join(f"{name}: {reason}" for name, reason in reasons.items()))),
    ):
        count = sum(one == kind for one in status.values())
        table.add_row(kind, str(count), about if count else "", style="red" if kind == "failed" and count else "")
    return table

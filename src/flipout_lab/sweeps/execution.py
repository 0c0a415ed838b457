"""Run all runs of a grid in one folder. A sweep that was interrupted continues where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..errors import LabError
from ..runs.method_options import shown
from ..runs.run_folder import RESULT, accuracy_in, locked
from ..runs.run_views import epoch_line
from ..runs.settings import Settings
from ..stored_formats import FAILURE_FORMAT, SWEEP_FORMAT
from ..tables import Table
from .grid import Grid, PlannedRun
from .local_engine import RETRIES, Engine, Job, JobUpdate
from .store import Store, is_url

SWEEP, LOCK, FAILURE = "sweep.json", "sweep.lock", "failure.json"
KnownResult = Mapping[str, Any]
"""The `result` of a run of an earlier sweep and the `versions` of its software, as a report keeps them."""

Status = Literal["done", "skipped", "failed"]


@dataclass
class SweepOutcome:
    """The status of every run of a sweep, and the reasons of failures, by run name."""

    status: dict[str, Status] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        return sum(each == status for each in self.status.values())

    def table(self) -> Table:
        names: dict[str, list[str]] = {}  # of the runs that failed for the same reason
        for name, reason in self.reasons.items():
            names.setdefault(reason, []).append(name)
        failures = "\n".join(f"{_named(runs)}: {reason}" for reason, runs in names.items())
        details: dict[Status, str] = {"done": "trained now", "skipped": "finished before", "failed": failures}
        rows = [[kind, str(self.count(kind)), text if self.count(kind) else ""] for kind, text in details.items()]
        return Table("", ("runs", "number", "details"), rows, texts=(0, 2))


class SweepView:
    """Collects the outcome of a sweep, writes failures to its store, and prints a line for each run.

    On a terminal there are progress bars below the lines.
    """

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

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, store: Store, outcome: SweepOutcome, total: int) -> None:
        self.store, self.outcome, self.total = store, outcome, total
        finished = len(outcome.status)
        self.print_line(f"{total} runs, {finished} of them already finished")
        self.all = self.progress.add_task("all runs", total=total, completed=finished, latest="")

    def retried(self, job: Job, attempt: int, reason: str) -> None:
        self.print_line(f"{describe_run(job.settings)}: died, retry {attempt - 1} of {RETRIES}: {reason}")

    def step(self, job: Job, progress: Mapping[str, Any]) -> None:
        if job.name not in self.tasks:
            self.tasks[job.name] = self.progress.add_task(describe_run(job.settings), latest="")
        latest: dict[str, Any] = {"latest": epoch_line(progress)} if "loss" in progress else {}
        self.progress.update(self.tasks[job.name], total=progress["steps"], completed=progress["step"], **latest)

    def ended(self, job: Job, update: JobUpdate, attempts: int) -> None:
        failure = f"{job.name}/{FAILURE}"
        if update.kind == "done" and not self.store.has(f"{job.name}/{RESULT}"):
            advice = f"{self.store} is not the same folder on every machine: set --out to a shared folder or a URL"
            update = JobUpdate("failed", {"error": f"the run finished, but its result is not here; {advice}"})
        if update.kind == "done":
            self.outcome.status[job.name] = "done"
            self.store.remove(failure)
        else:
            self.outcome.status[job.name] = "failed"
            tried = f" (tried {attempts} times)" if attempts > 1 else ""
            self.outcome.reasons[job.name] = f"{update.details['error']}{tried}"
            self.store.write(failure, {"kind": update.kind, "attempts": attempts, **update.details})
        if (task := self.tasks.pop(job.name, None)) is not None:
            self.progress.remove_task(task)
        ended = len(self.outcome.status)
        self.progress.update(self.all, completed=ended)
        number = f"{ended:>{len(str(self.total))}}/{self.total}"
        self.print_line(f"{number} {describe_run(job.settings)}: {_describe_end(update)}")

    def print_line(self, line: str) -> None:
        if not self.quiet:
            self.progress.console.print(Text(line), soft_wrap=True)


def _named(runs: Sequence[str]) -> str:
    return f"{runs[0]} and {len(runs) - 1} more" if len(runs) > 1 else runs[0]


def describe_run(settings: Settings) -> str:
    """A run in a few words: the network, the method with its options, the sparsity and the seed."""
    given = [f"{name} {shown(value)}" for name, value in settings.given_options.items()]
    pruned = "" if settings.sparsity is None else f"{settings.sparsity:.4%} pruned"
    width = "" if settings.width == 1 else f"width {settings.width:g}"
    what = f"{settings.model} {settings.method}", width, *given, pruned, f"seed {settings.seed}"
    return ", ".join(filter(None, what))


def _describe_end(update: JobUpdate) -> str:
    if update.kind != "done":
        return f"failed: {update.details['error']}"
    layers = update.details["dead_layers"]
    dead = f", dead layers: {', '.join(layers)}" if layers else ""
    return f"{accuracy_in(update.details):.2%}, {update.details['seconds']:.0f} s{dead}"


def sweep(
    grids: Sequence[Grid],
    store: Store,
    engine: Engine,
    view: SweepView,
    *,
    retry_diverged: bool = False,
    known: Mapping[str, KnownResult] | None = None,
) -> SweepOutcome:
    """Run everything that is not finished.

    A run that diverged would diverge again, so it is only repeated with `retry_diverged`. A run whose result is `known`
    from elsewhere is finished: the sweep keeps what is known of it.
    """
    planned = {run.name: run for grid in grids for run in grid.runs()}
    store.prepare()
    # One sweep per folder. A URL has no lock.
    with contextlib.nullcontext() if is_url(store.location) else locked(Path(store.path) / LOCK, "sweep is running"):
        described = _write_description(grids, store, engine, known or {})
        threads = described["threads"]
        outcome, jobs = SweepOutcome(), []
        for name, run in planned.items():
            if name in described["known"] or store.has(f"{name}/{RESULT}"):
                outcome.status[name] = "skipped"
            elif not retry_diverged and (reason := divergence_reason(store, name)):
                outcome.status[name], outcome.reasons[name] = "failed", reason
            else:
                jobs.append(Job(name, run.settings, store.run_location(name), run.settings.threads or threads))
        missing = engine.missing_data(jobs)  # it shows the progress of downloads, so it comes before the view
        with view:
            view.start(store, outcome, len(planned))
            for job in jobs:
                if job.settings.data in missing:
                    view.ended(job, JobUpdate("failed", {"error": missing[job.settings.data]}), 1)
            engine.run([job for job in jobs if job.settings.data not in missing], view)
        return outcome


def divergence_reason(store: Store, name: str) -> str:
    """The error with which a run diverged in an earlier sweep; empty if it did not."""
    if not store.has(f"{name}/{FAILURE}"):
        return ""
    failure = store.read(f"{name}/{FAILURE}", FAILURE_FORMAT, "delete it")
    return str(failure["error"]) if failure["kind"] == "diverged" else ""


def _write_description(
    grids: Sequence[Grid], store: Store, engine: Engine, known: Mapping[str, KnownResult]
) -> dict[str, Any]:
    """Write `sweep.json` and return its content: which runs belong to which part of which grid, which results are
    known, and the threads of each run.

    A sweep keeps the number of threads it was started with, because the last bits of a result depend on it.
    """
    content: dict[str, Any] = {"threads": engine.threads, "grids": {}, "runs": {}}
    if store.has(SWEEP):
        content = store.read(SWEEP, SWEEP_FORMAT, "delete it and start the sweep again to restore it")
        if engine.threads_requested and engine.threads != content["threads"]:
            raise LabError(
                f"the sweep in {store} was started with {content['threads']} threads per run, and the last bits of its "
                f"results depend on that: leave --threads {engine.threads} out, or choose another --out"
            )
    for grid in grids:
        runs, before = grid.runs(), content["grids"].get(grid.name, {"parts": {}})
        # The parts and runs of this sweep come first, in their order, because a report shows them in this order.
        parts = _parts(runs)
        content["grids"][grid.name] = {"title": grid.title, "parts": parts | {**before["parts"], **parts}}
        planned = {run.name: run.settings.non_defaults() for run in runs}
        content["runs"] = planned | {**content["runs"], **planned}
    # A run that only an older version of a grid asked for is not reported as missing.
    wanted = {name for grid in content["grids"].values() for names in grid["parts"].values() for name in names}
    content["runs"] = {name: settings for name, settings in content["runs"].items() if name in wanted}
    all_known = {**content.get("known", {}), **known}
    content["known"] = {name: result for name, result in all_known.items() if name in wanted}
    store.write(SWEEP, content)
    return content


def _parts(runs: Sequence[PlannedRun]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for run in runs:
        for part in run.parts:
            parts.setdefault(part, []).append(run.name)
    return parts

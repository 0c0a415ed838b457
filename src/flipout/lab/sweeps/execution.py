"""A sweep: all runs of a grid in one folder, from wherever they were left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import LabError
from ..runs.run_folder import RESULT, locked
from .grid import Grid, Planned
from .job import Engine, Job, Told
from .store import Remote, Store
from .sweep_view import SweepView

SWEEP, LOCK, FAILURE = "sweep.json", "sweep.lock", "failure.json"
Status = Literal["done", "skipped", "failed"]


@dataclass
class Report:
    """What became of every run of a sweep, by name."""

    status: dict[str, Status] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        return sum(one == status for one in self.status.values())


def sweep(grids: Sequence[Grid], store: Store, engine: Engine, view: SweepView, *, again: bool = False) -> Report:
    """Runs what is not finished. A run that diverged would diverge again, so it is only tried `again` if asked to."""
    planned = {run.name: run for grid in grids for run in grid.runs()}
    store.prepare()
    with _locked(store):
        threads = _describe(grids, store, engine)
        report, jobs = Report(), []
        for name, run in planned.items():
            if store.has(f"{name}/{RESULT}"):
                report.status[name] = "skipped"
            elif not again and (reason := diverged_before(store, name)):
                report.status[name], report.reasons[name] = "failed", reason
            else:
                jobs.append(Job(name, run.settings, store.where(name), run.settings.threads or threads))
        with view:
            view.start(len(planned), len(planned) - len(jobs))
            engine.run(jobs, _Listener(store, report, view))
        return report


def diverged_before(store: Store, name: str) -> str:
    """Why a run broke down, if it did."""
    if not store.has(f"{name}/{FAILURE}"):
        return ""
    failure = store.read(f"{name}/{FAILURE}")
    return str(failure["error"]) if failure["kind"] == "diverged" else ""


@contextlib.contextmanager
def _locked(store: Store) -> Iterator[None]:
    """One sweep to a folder; elsewhere than in a folder there are no locks to be had."""
    if isinstance(store, Remote):
        yield
        return
    with locked(store.root / LOCK, "sweep is going on"):
        yield


def _describe(grids: Sequence[Grid], store: Store, engine: Engine) -> int:
    """Notes which runs belong to which part of which grid, and gives the number of threads of a run: what a sweep was
    started with it goes on with, for the last bits of a result depend on it."""
    content: dict[str, Any] = {"threads": engine.threads, "grids": {}, "runs": {}}
    if store.has(SWEEP):
        content = store.read(SWEEP)
        if not {"threads", "grids", "runs"} <= content.keys():
            raise LabError(f"{SWEEP} in {store} is damaged; remove it, and the sweep finds its runs again")
        if engine.threads_asked and engine.threads != content["threads"]:
            raise LabError(
                f"the sweep in {store} was started with {content['threads']} threads a run, and the last bits of its "
                f"results depend on that: leave --threads {engine.threads} out, or choose another --out"
            )
    for grid in grids:
        runs, before = grid.runs(), content["grids"].get(grid.name, {"parts": {}})
        # What is asked for now comes first, in its order; a report shows it so.
        parts = _parts(runs)
        content["grids"][grid.name] = {"title": grid.title, "parts": parts | _others(before["parts"], parts)}
        planned = {run.name: run.settings.non_defaults() for run in runs}
        content["runs"] = planned | _others(content["runs"], planned)
    # What an older form of a grid asked for, and this one does not, is not missing.
    wanted = {name for grid in content["grids"].values() for names in grid["parts"].values() for name in names}
    content["runs"] = {name: settings for name, settings in content["runs"].items() if name in wanted}
    store.write(SWEEP, content)
    return int(content["threads"])


def _others(known: Mapping[str, Any], but: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name not in but}


def _parts(runs: Sequence[Planned]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for run in runs:
        for part in run.parts:
            parts.setdefault(part, []).append(run.name)
    return parts


class _Listener:
    """Keeps the report, records failures, and shows what happens."""

    def __init__(self, store: Store, report: Report, view: SweepView) -> None:
        self.store, self.report, self.view = store, report, view

    def retried(self, job: Job, attempt: int, reason: str) -> None:
        self.view.retried(job, attempt, reason)

    def step(self, job: Job, about: Mapping[str, Any]) -> None:
        self.view.step(job, about)

    def ended(self, job: Job, told: Told, attempts: int) -> None:
        failure = f"{job.name}/{FAILURE}"
        if told.kind == "done" and not self.store.has(f"{job.name}/{RESULT}"):
            unseen = f"{self.store} is not the same folder on every machine: give --out a shared one, or a URL"
            told = Told("failed", {"error": f"the run was done, but its result is not here; {unseen}"})
        if told.kind == "done":
            self.report.status[job.name] = "done"
            self.store.remove(failure)
        else:
            self.report.status[job.name] = "failed"
            tried = f" (tried {attempts} times)" if attempts > 1 else ""
            self.report.reasons[job.name] = f"{told.about['error']}{tried}"
            self.store.write(failure, {"kind": told.kind, "attempts": attempts, **told.about})
        self.view.ended(job, told)

"""A sweep: all runs of a grid in one folder, from wherever they were left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import filelock

from ..errors import LabError
from ..files import read_json, write_json
from ..folders import RESULT, prepare_folder
from .grid import Grid, Planned
from .job import FAILURE, RETRIES, Engine, Job, Told, record_failure
from .view import SweepView

SWEEP, LOCK = "sweep.json", "sweep.lock"
Status = Literal["done", "skipped", "failed"]


@dataclass
class Report:
    """What became of every run of a sweep, by name."""

    status: dict[str, Status] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        return sum(one == status for one in self.status.values())


def sweep(grids: Sequence[Grid], out: Path, engine: Engine, view: SweepView, *, again: bool = False) -> Report:
    """Runs what is not finished. A run that diverged would diverge again, so it is only tried `again` if asked to."""
    planned = {run.name: run for grid in grids for run in grid.runs()}
    prepare_folder(out)
    lock = filelock.FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise LabError(f"another sweep is going on in {out}; wait for it, or choose another --out") from error
    try:
        threads = _describe(grids, out, engine.threads)
        report, jobs = Report(), []
        for name, run in planned.items():
            if (out / name / RESULT).exists():
                report.status[name] = "skipped"
            elif not again and (reason := diverged_before(out / name)):
                report.status[name], report.reasons[name] = "failed", reason
            else:
                jobs.append(Job(name, run.settings, str(out / name), run.settings.threads or threads))
        listener = _Listener(report, view)
        with view:
            view.start(len(planned), len(planned) - len(jobs))
            engine.run(jobs, listener)
        return report
    finally:
        lock.release()


def diverged_before(folder: Path) -> str:
    """Why a run broke down, if it did."""
    if not (folder / FAILURE).exists():
        return ""
    failure = read_json(folder / FAILURE)
    return str(failure["error"]) if failure["kind"] == "diverged" else ""


def _describe(grids: Sequence[Grid], out: Path, threads: int) -> int:
    """Notes which runs belong to which part of which grid, and gives the number of threads of a run: what a sweep was
    started with it goes on with, for the last bits of a result depend on it."""
    content: dict[str, Any] = {"threads": threads, "grids": {}}
    if (out / SWEEP).exists():
        content = read_json(out / SWEEP)
    for grid in grids:
        before = content["grids"].get(grid.name, {"parts": {}})
        content["grids"][grid.name] = {"title": grid.title, "parts": {**before["parts"], **_parts(grid.runs())}}
    write_json(out / SWEEP, content)
    return int(content["threads"])


def _parts(runs: Sequence[Planned]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for run in runs:
        for part in run.parts:
            parts.setdefault(part, []).append(run.name)
    return parts


class _Listener:
    """Keeps the report, records failures, and shows what happens."""

    def __init__(self, report: Report, view: SweepView) -> None:
        self.report, self.view = report, view
        self.attempts: dict[str, int] = {}

    def started(self, job: Job, attempt: int) -> None:
        self.attempts[job.name] = attempt
        self.view.started(job, attempt)

    def epoch(self, job: Job, metrics: Mapping[str, Any]) -> None:
        self.view.epoch(job, metrics)

    def ended(self, job: Job, told: Told) -> None:
        folder = Path(job.folder)
        if told.kind == "done":
            self.report.status[job.name] = "done"
            (folder / FAILURE).unlink(missing_ok=True)
        else:
            self.report.status[job.name] = "failed"
            reason = str(told.about["error"])
            if told.kind == "died":
                reason += f" (tried {self.attempts.get(job.name, RETRIES + 1)} times)"
            self.report.reasons[job.name] = reason
            record_failure(folder, told, self.attempts.get(job.name, 1))
        self.view.ended(job, told)

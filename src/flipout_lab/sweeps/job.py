"""One run of a sweep on any machine: its input, its execution, and the updates it sends."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from ..errors import BusyError, DivergedError, LabError
from ..runs.run_views import View
from ..runs.settings import Settings, validated
from ..runs.training import StoppedError, train
from .store import RunMirror, is_url

RETRIES = 2
STOP_TIMEOUT = 60.0  # seconds that runs have to save themselves when the sweep is stopped
LOCK_TIMEOUT = 60.0  # seconds to wait for the lock of a run; the process of an earlier attempt has ended by then
RESULT_KEYS = ("test_accuracy", "validation_accuracy", "dead_layers", "seconds")  # of the update "done"


@dataclass(frozen=True)
class Job:
    """A run to execute. `location` is its own folder, or a URL."""

    name: str
    settings: Settings
    location: str
    threads: int


@dataclass(frozen=True)
class JobUpdate:
    """An update about a job. After `died` the job may be tried again; `step` is progress; all others are final."""

    kind: Literal["step", "done", "diverged", "failed", "died", "stopped"]
    details: Mapping[str, Any]


class Listener(Protocol):
    """Receives what happens in a sweep."""

    def retried(self, job: Job, attempt: int, reason: str) -> None: ...
    def step(self, job: Job, progress: Mapping[str, Any]) -> None: ...
    def ended(self, job: Job, update: JobUpdate, attempts: int) -> None: ...


class Engine(Protocol):
    """Runs jobs: in processes on this machine, or on a cluster."""

    threads: int
    threads_requested: bool  # whether the user chose the number of threads

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run all jobs. A job that dies is tried again, at most twice. Raise StoppedError if asked to stop."""


class ProgressSender(View):
    """Send the progress of a run as updates, at most one per `pause` seconds and one per epoch."""

    def __init__(self, send: Callable[[JobUpdate], object], pause: float = 0.5) -> None:
        self.send, self.pause, self.last = send, pause, 0.0

    def start(self, name: str, steps: int, step: int) -> None:
        self.steps = steps
        self.send(JobUpdate("step", {"step": step, "steps": steps}))

    def step(self, step: int) -> None:
        now = time.monotonic()
        if now - self.last > self.pause:
            self.last = now
            self.send(JobUpdate("step", {"step": step, "steps": self.steps}))

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.send(JobUpdate("step", {**metrics, "steps": self.steps}))


def run_job(
    settings_data: Mapping[str, Any], location: str, threads: int, send: Callable[[JobUpdate], object]
) -> JobUpdate:
    """Train, and return the final update. Errors of the run become updates; none is raised."""
    torch.set_num_threads(threads)
    try:
        settings = validated(settings_data)
        if not is_url(location):
            return _done(train(settings, location, view=ProgressSender(send), patience=LOCK_TIMEOUT))
        with tempfile.TemporaryDirectory(prefix="flipout-") as scratch:
            mirror = RunMirror(location, Path(scratch))
            mirror.fetch()
            try:
                return _done(train(settings, scratch, view=ProgressSender(send), trackers=[mirror]))
            finally:
                mirror.push()
    except StoppedError as error:
        return JobUpdate("stopped", {"error": str(error)})
    except DivergedError as error:
        return JobUpdate("diverged", {"error": str(error)})
    except BusyError as error:
        return JobUpdate("died", {"error": str(error)})
    except LabError as error:
        return JobUpdate("failed", {"error": str(error)})
    except Exception as error:  # of any kind, so that the other runs continue
        reason = f"{type(error).__name__}: {error}"
        return JobUpdate("died", {"error": reason, "traceback": traceback.format_exc()})


def _done(result: Mapping[str, Any]) -> JobUpdate:
    """The final update of a run that finished. The complete result is in its folder."""
    return JobUpdate("done", {key: result[key] for key in RESULT_KEYS})

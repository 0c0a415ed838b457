"""One run of a sweep, wherever it runs: what it is given, and what is told about it."""

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
from ..runs.progress_view import Quiet
from ..runs.settings import Settings, validated
from ..runs.training import StoppedError, train
from .store import Mirror, is_url

RETRIES = 2
GRACE = 60.0  # seconds for the runs to save themselves after being asked to stop
PATIENCE = 60.0  # seconds until the process of an earlier attempt has surely gone
TOLD_OF_RESULTS = ("test_accuracy", "validation_accuracy", "dead_layers", "seconds")


@dataclass(frozen=True)
class Job:
    """A run that is to be done; `where` is its own folder, or a URL."""

    name: str
    settings: Settings
    where: str
    threads: int


@dataclass(frozen=True)
class Told:
    """What happened to a job. `died` is what may go well another time; the others but `step` are final."""

    kind: Literal["step", "done", "diverged", "failed", "died", "stopped"]
    about: Mapping[str, Any]


class Listener(Protocol):
    """Who is told what happens in a sweep."""

    def retried(self, job: Job, attempt: int, reason: str) -> None: ...
    def step(self, job: Job, about: Mapping[str, Any]) -> None: ...
    def ended(self, job: Job, told: Told, attempts: int) -> None: ...


class Engine(Protocol):
    """What runs jobs: processes of this machine, or a cluster."""

    threads: int
    threads_asked: bool  # by the user, who then wants no other number

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Runs them all; what dies is tried again, twice. Raises StoppedError if it was asked to stop."""


class Steps(Quiet):
    """Passes on how far a run is, once in a while."""

    def __init__(self, tell: Callable[[Told], object], pause: float = 0.5) -> None:
        self.tell, self.pause, self.last = tell, pause, 0.0

    def start(self, name: str, steps: int, step: int) -> None:
        self.steps = steps
        self.tell(Told("step", {"step": step, "steps": steps}))

    def step(self, step: int) -> None:
        now = time.monotonic()
        if now - self.last > self.pause:
            self.last = now
            self.tell(Told("step", {"step": step, "steps": self.steps}))

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.tell(Told("step", {**metrics, "steps": self.steps}))


def work(described: Mapping[str, Any], where: str, threads: int, tell: Callable[[Told], object]) -> Told:
    """Trains, and says how it ended; never raises for a reason that lies in the run."""
    torch.set_num_threads(threads)
    try:
        settings = validated(described)
        if not is_url(where):
            return _done(train(settings, where, view=Steps(tell), patience=PATIENCE))
        with tempfile.TemporaryDirectory(prefix="flipout-") as scratch:
            mirror = Mirror(where, Path(scratch))
            mirror.fetch()
            try:
                return _done(train(settings, scratch, view=Steps(tell), trackers=[mirror]))
            finally:
                mirror.push()
    except StoppedError as error:
        return Told("stopped", {"error": str(error)})
    except DivergedError as error:
        return Told("diverged", {"error": str(error)})
    except BusyError as error:
        return Told("died", {"error": str(error)})
    except LabError as error:
        return Told("failed", {"error": str(error)})
    except Exception as error:  # of whatever kind: the other runs go on
        reason = f"{type(error).__name__}: {error}"
        return Told("died", {"error": reason, "traceback": traceback.format_exc()})


def _done(result: Mapping[str, Any]) -> Told:
    """The rest of a result is in its folder."""
    return Told("done", {key: result[key] for key in TOLD_OF_RESULTS})

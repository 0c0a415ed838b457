"""One run of a sweep, wherever it runs: what it is given, and what is told about it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from ..errors import DivergedError, LabError
from ..files import write_json
from ..progress import Quiet
from ..run import StoppedError, train
from ..settings import Settings, validated
from ..trackers import Tracker

FAILURE = "failure.json"
RETRIES = 2


@dataclass(frozen=True)
class Job:
    """A run that is to be done, in a folder of its own."""

    name: str
    settings: Settings
    folder: str
    threads: int


@dataclass(frozen=True)
class Told:
    """What happened to a job. `died` is what may go well another time; the others are final, but `epoch`."""

    kind: Literal["epoch", "done", "diverged", "failed", "died", "stopped"]
    about: Mapping[str, Any]


class Listener(Protocol):
    """Who is told what happens in a sweep."""

    def started(self, job: Job, attempt: int) -> None: ...
    def epoch(self, job: Job, metrics: Mapping[str, Any]) -> None: ...
    def ended(self, job: Job, told: Told) -> None: ...


class Engine(Protocol):
    """What runs jobs: processes of this machine, or a cluster."""

    threads: int

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Runs them all; what dies is tried again, twice. Raises StoppedError if it was asked to stop."""


class Epochs(Quiet):
    """Passes on what each epoch brought, at most a few times a second."""

    def __init__(self, tell: Callable[[Told], object], pause: float = 0.5) -> None:
        self.tell, self.pause, self.last = tell, pause, -1.0

    def start(self, name: str, steps: int, step: int) -> None:
        self.steps = steps

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last >= self.pause:
            self.last = now
            self.tell(Told("epoch", {**metrics, "steps": self.steps}))


def work(
    described: Mapping[str, Any],
    folder: str,
    threads: int,
    tell: Callable[[Told], object],
    trackers: Sequence[Tracker] = (),
) -> Told:
    """Trains, and says how it ended; never raises for a reason that lies in the run."""
    torch.set_num_threads(threads)
    try:
        return Told("done", train(validated(described), folder, view=Epochs(tell), trackers=trackers))
    except StoppedError as error:
        return Told("stopped", {"error": str(error)})
    except DivergedError as error:
        return Told("diverged", {"error": str(error)})
    except LabError as error:
        return Told("failed", {"error": str(error)})
    except Exception as error:  # of whatever kind: the other runs go on
        reason = f"{type(error).__name__}: {error}"
        return Told("died", {"error": reason, "traceback": traceback.format_exc()})


def record_failure(folder: Path, told: Told, attempts: int) -> None:
    """Leaves the reason in the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FAILURE, {"kind": told.kind, "attempts": attempts, **told.about})

"""Run the jobs of a sweep on this machine: one process per run. The processes end when the sweep ends."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from ..data import download
from ..errors import BusyError, DivergedError, LabError, StoppedError
from ..files import is_folder
from ..runs.run_views import View
from ..runs.settings import Settings, validated
from ..runs.training import stop_signals, train
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


Kind = Literal["step", "done", "diverged", "failed", "died", "stopped"]


@dataclass(frozen=True)
class JobUpdate:
    """An update about a job. After `died` the job may be tried again; `step` is progress; all others are final."""

    kind: Kind
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

    def missing_data(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Why data sets of the jobs cannot be used, by name. Machines of a cluster find out by themselves."""
        return {}

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


JobData = tuple[dict[str, Any], str, int, str]
"""A job as plain data, which any version of the code can read: settings, location, threads, and the current folder."""


def job_data(job: Job) -> JobData:
    return job.settings.as_dict(), job.location, job.threads, str(Path.cwd())


KINDS: dict[type[Exception], Kind] = {
    StoppedError: "stopped",
    DivergedError: "diverged",
    BusyError: "died",
    LabError: "failed",
    Exception: "died",
}
"""What an error of a run means for the sweep; the first that fits."""


def run_in_own_process(data: JobData, send: Callable[[JobUpdate], object]) -> JobUpdate:
    """Set this process up for a job, and run it."""
    if is_folder(data[3]):  # a machine of a cluster may not have it
        os.chdir(data[3])  # for the user's own modules and relative paths
    warnings.simplefilter("ignore")  # the result of the run has the same information
    torch.set_flush_denormal(True)  # before torch starts its threads, which inherit the setting
    return run_job(data, send)


def run_job(data: JobData, send: Callable[[JobUpdate], object]) -> JobUpdate:
    """Train, and return the final update. Errors become updates; none is raised."""
    settings, location, threads, _ = data
    torch.set_num_threads(threads)
    try:
        return _done(_train(validated(settings), location, ProgressSender(send)))
    except Exception as error:  # of any kind, so that the other runs continue
        kind = next(kind for cls, kind in KINDS.items() if isinstance(error, cls))
        reason = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        return JobUpdate(kind, {"error": reason, "traceback": traceback.format_exc()})


def _train(settings: Settings, location: str, view: View) -> Mapping[str, Any]:
    if not is_url(location):
        return train(settings, location, view=view, patience=LOCK_TIMEOUT)
    with tempfile.TemporaryDirectory(prefix="flipout-") as scratch:
        folder = Path(scratch) / "run"  # another network that the run needs is trained beside it
        mirror = RunMirror(location, folder)
        mirror.fetch()
        try:
            return train(settings, folder, view=view, trackers=[mirror])
        finally:
            mirror.push()


def tried_again(job: Job, attempt: int, update: JobUpdate, listener: Listener) -> bool:
    """Tell the listener how an attempt ended. Return whether the job is tried again.

    A run that was stopped by anybody but the sweep counts as dead: its machine may be shutting down.
    """
    if update.kind in ("died", "stopped") and attempt <= RETRIES:
        listener.retried(job, attempt + 1, update.details["error"])
        return True
    listener.ended(job, update, attempt)
    return False


def _done(result: Mapping[str, Any]) -> JobUpdate:
    """The final update of a run that finished. The complete result is in its folder."""
    return JobUpdate("done", {key: result[key] for key in RESULT_KEYS})


# What a run imports, including the imports of torch's first optimizer step.
PRELOADED = [__name__, "torch._dynamo", "torch._inductor.compile_fx", "sklearn.datasets"]


@dataclass
class Worker:
    job: Job
    attempt: int
    process: Any
    updates: Connection
    keep_alive: Connection  # the process ends when this end of the pipe closes
    last_update: JobUpdate | None = None

    def final_update(self) -> JobUpdate:
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        reason = f"the process of the run {how}; a common cause is that the system ran out of memory"
        return self.last_update or JobUpdate("died", {"error": reason})


class LocalEngine(Engine):
    """Run up to `jobs` runs at a time, each with an equal share of the cores."""

    def __init__(self, jobs: int | None = None, threads: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs = jobs or cores
        self.threads, self.threads_requested = threads or max(1, cores // self.jobs), threads is not None
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no process pool in each of many runs
        # The fork server has imported everything: a run starts at once and inherits no threads or locks.
        if "forkserver" in multiprocessing.get_all_start_methods():
            self.context: Any = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(PRELOADED)
        else:
            self.context = multiprocessing.get_context("spawn")

    def missing_data(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Why data sets cannot be used. Download each data set once, before the runs would all try to."""
        missing = {}
        for name in sorted({job.settings.data for job in jobs}):
            try:
                download(name)
            except LabError as error:
                missing[name] = str(error)
        return missing

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        waiting = deque((job, 1) for job in jobs)
        workers: list[Worker] = []
        with stop_signals() as stopping:
            try:
                while (waiting or workers) and not stopping.is_set():
                    while waiting and len(workers) < self.jobs:
                        workers.append(self._start(*waiting.popleft()))
                    for worker in self._receive(workers, listener):
                        workers.remove(worker)
                        if tried_again(worker.job, worker.attempt, worker.final_update(), listener):
                            waiting.appendleft((worker.job, worker.attempt + 1))
            finally:
                killed = _stop(workers)
            if stopping.is_set():
                saved = f"stopped; {len(workers) - killed} active runs saved their state"
                raise StoppedError(saved + (f", {killed} lost their last epoch" if killed else ""))

    def _start(self, job: Job, attempt: int) -> Worker:
        updates, their_updates = self.context.Pipe(duplex=False)
        their_keep_alive, keep_alive = self.context.Pipe(duplex=False)
        arguments = (job_data(job), their_updates, their_keep_alive)
        process = self.context.Process(target=_process, args=arguments, daemon=True, name=job.name)
        process.start()
        their_updates.close()
        their_keep_alive.close()
        return Worker(job, attempt, process, updates, keep_alive)

    def _receive(self, workers: Sequence[Worker], listener: Listener) -> list[Worker]:
        """Wait briefly for updates, pass them to the listener, and return the workers that have ended."""
        by_connection = {worker.updates: worker for worker in workers}
        ended = []
        for connection in wait(list(by_connection), timeout=0.2):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                update: JobUpdate = worker.updates.recv()
            except (EOFError, OSError):  # OSError: the process died while it sent an update
                worker.process.join()
                worker.updates.close()
                worker.keep_alive.close()
                ended.append(worker)
                continue
            if update.kind == "step":
                listener.step(worker.job, update.details)
            else:
                worker.last_update = update
        return ended


def _stop(workers: Sequence[Worker]) -> int:
    """Ask the runs to save their state, and kill those that do not end in time. Return how many were killed."""
    killed = 0
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(STOP_TIMEOUT)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
            killed += 1
    return killed


def _process(data: JobData, updates: Connection, keep_alive: Connection) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C goes to the sweep alone, which then asks its workers to stop
    threading.Thread(target=_exit_with_sweep, args=(keep_alive,), daemon=True).start()
    updates.send(run_in_own_process(data, updates.send))
    updates.close()


def _exit_with_sweep(keep_alive: Connection) -> None:
    """End this process as soon as the sweep's process has ended, for whatever reason."""
    try:
        keep_alive.recv()
    except (EOFError, OSError):
        os._exit(1)

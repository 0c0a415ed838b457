"""Sweeping with processes of this machine: one process a run, which dies with the sweep."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..runs.interruption import stop_signals
from ..runs.training import StoppedError
from .job import GRACE, RETRIES, Engine, Job, Listener, Told, work

# What a run would import, torch's first optimizer step included.
PRELOADED = [f"{__package__}.job", "torch._dynamo", "torch._inductor.compile_fx", "sklearn.datasets"]


@dataclass
class Worker:
    """A process that is busy with a job."""

    job: Job
    attempt: int
    process: Any
    news: Connection
    alive: Connection  # the other end is in the process, which ends when this one closes
    last: Told | None = None


class Local(Engine):
    """As many runs at a time as there are `jobs`, each with its share of the threads."""

    def __init__(self, jobs: int | None = None, threads: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs = jobs or cores
        self.threads, self.threads_asked = threads or max(1, cores // self.jobs), threads is not None
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for each of many runs
        # A server that has imported everything and forks: a run starts at once, and inherits no threads or locks.
        if "forkserver" in multiprocessing.get_all_start_methods():
            self.context: Any = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(PRELOADED)
        else:
            self.context = multiprocessing.get_context("spawn")

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        waiting = deque((job, 1) for job in jobs)
        workers: list[Worker] = []
        with stop_signals() as stopping:
            try:
                while (waiting or workers) and not stopping.is_set():
                    while waiting and len(workers) < self.jobs:
                        workers.append(self._start(*waiting.popleft()))
                    for worker in self._heard(workers, listener):
                        workers.remove(worker)
                        told = _outcome(worker)
                        if told.kind == "died" and worker.attempt <= RETRIES:
                            waiting.appendleft((worker.job, worker.attempt + 1))
                            listener.retried(worker.job, worker.attempt + 1, told.about["error"])
                        else:
                            listener.ended(worker.job, told, worker.attempt)
            finally:
                lost = _stop(workers)
            if stopping.is_set():
                saved = f"{len(workers) - lost} runs that were going on have saved themselves"
                raise StoppedError(f"stopped; {saved}" + (f", {lost} lost their last epoch" if lost else ""))

    def _start(self, job: Job, attempt: int) -> Worker:
        news, theirs = self.context.Pipe(duplex=False)
        held, alive = self.context.Pipe(duplex=False)
        arguments = (job.settings.as_dict(), job.where, job.threads, str(Path.cwd()), theirs, held)
        process = self.context.Process(target=_process, args=arguments, daemon=True, name=job.name)
        process.start()
        theirs.close()
        held.close()
        return Worker(job, attempt, process, news, alive)

    def _heard(self, workers: Sequence[Worker], listener: Listener) -> list[Worker]:
        """Waits a moment for news, passes them on, and gives the workers that have ended."""
        by_connection = {worker.news: worker for worker in workers}
        ended = []
        for connection in wait(list(by_connection), timeout=0.2):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                told: Told = worker.news.recv()
            except (EOFError, OSError):  # the latter if it died in the middle of a message
                worker.process.join()
                worker.news.close()
                worker.alive.close()
                ended.append(worker)
                continue
            if told.kind == "step":
                listener.step(worker.job, told.about)
            else:
                worker.last = told
        return ended


def _outcome(worker: Worker) -> Told:
    """How a worker ended. One that was asked to stop, but not by the sweep, is as good as dead."""
    told = worker.last or Told("died", {"error": _exit(worker.process.exitcode)})
    return Told("died", told.about) if told.kind == "stopped" else told


def _stop(workers: Sequence[Worker]) -> int:
    """Asks the runs to save themselves; what does not end in time is ended. Gives how many that were."""
    lost = 0
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
            lost += 1
    return lost


def _exit(code: int | None) -> str:
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return f"the process of the run {how}; the system does that when it is short of memory"


def _process(
    described: Mapping[str, Any],
    where: str,
    threads: int,
    folder: str,
    news: Connection,
    held: Connection,
) -> None:
    """The whole life of a worker."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the sweep, which asks its workers to stop
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    os.chdir(folder)  # where the user's own modules and relative paths are
    warnings.simplefilter("ignore")  # what they say of a run is in its result
    torch.set_flush_denormal(True)  # before torch starts its threads, which take it over
    news.send(work(described, where, threads, news.send))
    news.close()


def _end_with(held: Connection) -> None:
    """Ends this process at once when the sweep has gone, however it went."""
    try:
        held.recv()
    except (EOFError, OSError):
        os._exit(1)

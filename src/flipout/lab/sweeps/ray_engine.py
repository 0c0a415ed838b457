"""Sweeping on a Ray cluster: every run is a task that takes its CPUs and GPUs wherever they are free."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import LabError
from ..runs.interruption import stop_signals
from ..runs.training import StoppedError
from .job import GRACE, RETRIES, Engine, Job, Listener, Told, work


class Cluster(Engine):
    """`address` is "auto" for the cluster that this machine belongs to, or where its head is (ray://host:10001).

    The folder of the sweep must be one that all machines see, or a URL. What a machine takes with it when it goes is
    tried again elsewhere, from its last checkpoint.
    """

    def __init__(self, address: str, threads: int | None = None, gpus: float = 0.0) -> None:
        self.address, self.gpus = address, gpus
        self.threads, self.threads_asked = threads or 1, threads is not None
        try:
            import ray
        except ImportError as error:
            raise LabError("--ray needs the package ray: pip install 'flipout[ray]'") from error
        self.ray: Any = ray

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        ray, ours = self.ray, not self.ray.is_initialized()
        if ours:
            try:
                ray.init(address=self.address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise LabError(
                    f"there is no Ray cluster at {self.address!r} ({error}); start one with `ray start --head`"
                ) from error
        try:
            self._check_room(jobs)
            with stop_signals() as stopping:
                running = {self._submit(job, 1): (job, 1) for job in jobs}
                while running and not stopping.is_set():
                    for done in ray.wait(list(running), timeout=0.2)[0]:
                        job, attempt = running.pop(done)
                        told = self._outcome(done)
                        # What was stopped, but not by the sweep, was on a machine that is going away.
                        if told.kind in ("died", "stopped") and attempt <= RETRIES:
                            listener.retried(job, attempt + 1, told.about["error"])
                            running[self._submit(job, attempt + 1)] = (job, attempt + 1)
                        else:
                            listener.ended(job, told, attempt)
                if stopping.is_set():
                    left = self._cancel(list(running))
                    lost = f"; {left} did not end in time, and lose their last epoch" if left else ""
                    raise StoppedError(f"stopped; what was going on has saved itself{lost}")
        finally:
            if ours:
                ray.shutdown()

    def _submit(self, job: Job, attempt: int) -> Any:
        # Ray's own retries would not be told of; and a run asks for CPUs, so that machines are not overfull.
        task = self.ray.remote(num_cpus=job.threads, num_gpus=self.gpus, max_retries=0)(_task)
        return task.remote(job.settings.as_dict(), job.where, job.threads, str(Path.cwd()))

    def _outcome(self, done: Any) -> Told:
        try:
            kind, about = self.ray.get(done)
            return Told(kind, about)
        except self.ray.exceptions.RayError as error:  # the worker or its machine has gone
            return Told("died", {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})

    def _cancel(self, running: list[Any]) -> int:
        """Interrupts the runs, which save themselves; gives how many did not end in time."""
        for one in running:
            self.ray.cancel(one, force=False)
        return len(self.ray.wait(running, num_returns=len(running), timeout=GRACE)[1])

    def _check_room(self, jobs: Sequence[Job]) -> None:
        """Ray would wait for ever for a machine that can take a run."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        threads = max((job.threads for job in jobs), default=0)
        if not any(one.get("CPU", 0) >= threads and one.get("GPU", 0) >= self.gpus for one in machines):
            raise LabError(
                f"no machine of the cluster has {threads} CPUs and {self.gpus:g} GPUs for a run: lower --threads or "
                "--gpus, or add a machine"
            )


def _task(described: Mapping[str, Any], where: str, threads: int, folder: str) -> tuple[str, Mapping[str, Any]]:
    """What runs on the cluster; plain data goes back, whatever version of the code is there."""
    if Path(folder).is_dir():
        os.chdir(folder)  # where the user's own modules are, if this machine has them
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    told = work(described, where, threads, lambda _: None)
    return told.kind, told.about

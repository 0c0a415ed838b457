"""Run a sweep on a Ray cluster: every run is a task that requests CPUs and GPUs."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..errors import LabError, StoppedError, optional_module
from ..runs.training import stop_signals
from .local_engine import (
    STOP_TIMEOUT,
    Engine,
    Job,
    JobData,
    JobUpdate,
    Kind,
    Listener,
    job_data,
    run_in_own_process,
    tried_again,
)

CONNECT_TIMEOUT = 5.0
"""Seconds to wait for an answer from the head of a cluster."""


class RayEngine(Engine):
    """Run jobs on the cluster at `address`: "auto" for the cluster of this machine, or its head (ray://host:10001).

    The folder of the sweep must be shared by all machines, or be a URL. A run whose machine goes away is tried again
    on another one, from its last checkpoint.
    """

    def __init__(self, address: str, threads: int | None = None, gpus: float = 0.0) -> None:
        self.address, self.gpus = address, gpus
        self.threads, self.threads_requested = threads or 1, threads is not None
        self.ray = optional_module("ray", "--ray", "'flipout[ray]'")

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        ray, connect = self.ray, not self.ray.is_initialized()
        if connect:
            _check_address(self.address)
            try:
                ray.init(address=self.address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise no_cluster(self.address, error) from error
        try:
            self._check_resources(jobs)
            with stop_signals() as stopping:
                running = {self._submit(job): (job, 1) for job in jobs}
                while running and not stopping.is_set():
                    for task in ray.wait(list(running), timeout=0.2)[0]:
                        job, attempt = running.pop(task)
                        if tried_again(job, attempt, self._final_update(task), listener):
                            running[self._submit(job)] = (job, attempt + 1)
                if stopping.is_set():
                    late = self._cancel(list(running))
                    lost = f"; {late} runs did not end in time and lost their last epoch" if late else ""
                    raise StoppedError(f"stopped; active runs saved their state{lost}")
        finally:
            if connect:
                ray.shutdown()

    def _submit(self, job: Job) -> Any:
        # No retries by Ray, because the sweep would not learn of them. Requesting CPUs prevents overloaded machines.
        task = self.ray.remote(num_cpus=job.threads, num_gpus=self.gpus, max_retries=0)(_task)
        return task.remote(job_data(job))

    def _final_update(self, task: Any) -> JobUpdate:
        try:
            kind, details = self.ray.get(task)
            return JobUpdate(kind, details)
        except self.ray.exceptions.RayError as error:  # the worker or its machine is gone
            return JobUpdate("died", {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})

    def _cancel(self, running: list[Any]) -> int:
        """Interrupt the runs, which then save their state. Return how many did not end in time."""
        for task in running:
            self.ray.cancel(task, force=False)
        return len(self.ray.wait(running, num_returns=len(running), timeout=STOP_TIMEOUT)[1])

    def _check_resources(self, jobs: Sequence[Job]) -> None:
        """Raise an error if no machine is large enough for a run. Ray itself would wait forever."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        threads = max((job.threads for job in jobs), default=0)
        if not any(machine.get("CPU", 0) >= threads and machine.get("GPU", 0) >= self.gpus for machine in machines):
            raise LabError(
                f"no machine of the cluster has {threads} CPUs and {self.gpus:g} GPUs for a run: lower --threads or "
                "--gpus, or add a machine"
            )


def _check_address(address: str) -> None:
    """Raise an error if nothing answers at an address. Ray itself would try again for minutes."""
    if address in ("auto", "local"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port or {"ray": 10001}.get(parts.scheme)
        if parts.scheme not in ("", "ray") or not host or not port:
            raise ValueError
    except ValueError:
        raise LabError(f"--ray {address} is not an address: give auto, HOST:PORT, or ray://HOST:PORT") from None
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise no_cluster(address, error) from error


def no_cluster(address: str, error: Exception) -> LabError:
    return LabError(f"there is no Ray cluster at {address!r} ({error}); start one with `ray start --head`")


def _task(data: JobData) -> tuple[Kind, Mapping[str, Any]]:
    """The function that runs on the cluster. It returns plain data, which any version of the code can read."""
    update = run_in_own_process(data, lambda _: None)
    return update.kind, update.details

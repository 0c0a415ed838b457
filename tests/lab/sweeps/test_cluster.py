"""A sweep on a real Ray cluster of several nodes, one of which is killed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flipout_lab.errors import LabError
from flipout_lab.sweeps import Store, SweepOutcome, sweep
from flipout_lab.sweeps.execution import SweepView
from flipout_lab.sweeps.grid import Grid, parse_grid
from flipout_lab.sweeps.local_engine import Job, LocalEngine
from flipout_lab.sweeps.ray_engine import RayEngine
from tests.lab.helpers import untimed

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files open, and warns about its own future changes.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        started.add_node(num_cpus=1)
    started.wait_for_nodes()
    ray.init(address=started.address, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()


def grid(epochs: int, **part: Any) -> Grid:
    base = {"data": "digits", "model": "mlp", "epochs": epochs, "width": 0.5, "batch_size": 16, "learning_rate": 0.03}
    return parse_grid("test", {"base": base, "part": [{"sparsity": 0.9, **part}]})


def quiet() -> SweepView:
    return SweepView(Console(file=io.StringIO(), width=200), quiet=True)


def results(out: Path) -> dict[str, Any]:
    found = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}
    return {name: untimed(result) for name, result in found.items()}


def same(one: Path, other: Path) -> None:
    assert results(one) == results(other)
    for model in one.glob("*/model.safetensors"):
        assert model.read_bytes() == (other / model.parent.name / model.name).read_bytes()


class KillingView(SweepView):
    """Knows the node to kill, and records the retries."""

    def __init__(self, cluster: Any, node: Any, out: Path) -> None:
        super().__init__(Console(file=io.StringIO(), width=200))
        self.cluster, self.node, self.out = cluster, node, out
        self.retries: list[str] = []

    def retried(self, job: Job, attempt: int, reason: str) -> None:
        self.retries.append(reason)


def test_a_sweep_survives_the_death_of_a_node(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = grid(25, method=["flipout", "magnitude"], seed=[0, 1])
    sweep([chosen], Store(str(tmp_path / "local")), LocalEngine(1, 1), quiet())
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    view = KillingView(cluster, node, tmp_path / "ray")
    engine, waited = RayEngine(cluster.address), ray.wait

    def wait(running: list[Any], **options: Any) -> Any:
        """Kill a node once three runs are active."""
        if view.node is not None and len(list(view.out.glob("*/checkpoint/*.ckpt"))) >= 3:
            cluster.remove_node(view.node, allow_graceful=False)
            view.node = None
        return waited(running, **options)

    monkeypatch.setattr(ray, "wait", wait)
    outcome = sweep([chosen], Store(str(tmp_path / "ray")), engine, view)
    assert view.node is None, "the sweep ended before the node was killed"
    assert view.retries, "the node that was killed had no run"
    assert set(outcome.status.values()) == {"done"}
    same(tmp_path / "local", tmp_path / "ray")


def test_results_at_a_url(cluster: Any, tmp_path: Path) -> None:
    chosen = grid(3, method=["flipout", "magnitude"])
    sweep([chosen], Store(str(tmp_path / "local")), LocalEngine(1, 1), quiet())
    sweep([chosen], Store(f"file://{tmp_path}/ray"), RayEngine(cluster.address), quiet())
    same(tmp_path / "local", tmp_path / "ray")


def test_failures_are_recorded(cluster: Any, tmp_path: Path) -> None:
    chosen = grid(2, method="magnitude", learning_rate=[0.1, 1e20])
    outcome: SweepOutcome = sweep([chosen], Store(str(tmp_path)), RayEngine(cluster.address), quiet())
    assert sorted(outcome.status.values()) == ["done", "failed"]
    (failure,) = tmp_path.glob("*/failure.json")
    assert json.loads(failure.read_text())["kind"] == "diverged"


def test_a_run_that_is_too_large_for_every_machine_is_an_error(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"64 CPUs"):
        sweep([grid(1)], Store(str(tmp_path)), RayEngine(cluster.address, threads=64), quiet())
    with pytest.raises(LabError, match=r"1 GPUs"):
        sweep([grid(1)], Store(str(tmp_path / "gpu")), RayEngine(cluster.address, gpus=1), quiet())


def test_a_missing_cluster_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: Any) -> None:
        raise ConnectionError("could not find any running Ray instance")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuses)
    with pytest.raises(LabError, match=r"no Ray cluster at 'auto'.*ray start --head"):
        sweep([grid(1)], Store(str(tmp_path)), RayEngine("auto"), quiet())

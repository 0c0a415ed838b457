"""Fixtures: a small sweep with everything a report has to handle: failures, missing runs, curves, dead layers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from flipout_lab.reports import Records, collect
from flipout_lab.sweeps import Store, sweep
from flipout_lab.sweeps.execution import SweepView
from flipout_lab.sweeps.grid import parse_grid
from flipout_lab.sweeps.local_engine import Engine, Job, Listener, job_data, run_job

BASE = {"recipe": "paper", "data": "digits", "model": "mlp", "epochs": 3, "width": 0.25}
PARTS = [
    {"name": "results", "method": ["flipout-paper", "magnitude"], "sparsity": [0.75, 0.9375], "seed": [0, 1]},
    {"name": "results", "method": "snip", "sparsity": [0.75, 0.999], "seed": [0, 1]},
    {"name": "results", "method": "dense", "sparsity": 0.0, "seed": [0, 1]},
    {"name": "results", "method": "hoyer-square", "sparsity": "none", "lambda": [1e-5, 1e-3, 1e-2], "threshold": 5e-2},
    {
        "name": "ablation",
        "variants": [{"method": "flipout-paper"}, {"method": "flipout-paper", "noise": 0.0}],
        "sparsity": 0.9375,
    },
    {"name": "broken", "method": "magnitude", "learning_rate": 1e20},
    {
        "name": "aim",
        "aim": True,
        "variants": [{"method": "flipout-paper", "noise": 0.0}, {"method": "flipout-paper"}],
        "sparsity": 0.75,
        "seed": [0, 1],
    },
    {
        "name": "table3",
        "method": "flipout-paper",
        "p": [0.0, 0.5, 1.0, 2.0, 4.0],
        "validate": True,
        "sparsity": [0.75, 0.9375],
    },
    {"name": "table2", "method": "flipout-paper", "noise": [0.5, 1.0, 1.5], "validate": True, "sparsity": 0.75},
]


class InProcessEngine(Engine):
    """Runs jobs in this process, one after the other, and leaves out some methods."""

    threads = 1
    threads_requested = False

    def __init__(self, left_out: Sequence[str] = ()) -> None:
        self.left_out = left_out

    def run(self, jobs: Sequence[Job], listener: Listener) -> None:
        for job in jobs:
            if job.settings.method not in self.left_out:
                update = run_job(job_data(job), lambda _: None)
                listener.ended(job, update, 1)


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    grid = parse_grid("test", {"title": "A <small> test", "base": BASE, "part": PARTS})
    missing = {"name": "never", "method": "random", "sparsity": [0.75, 0.9375], "seed": 0}
    never = parse_grid("never", {"title": "& not run", "base": BASE, "part": [missing]})
    view = SweepView(Console(file=io.StringIO()), quiet=True)
    sweep([grid, never], Store(str(folder)), InProcessEngine(left_out=["random"]), view)
    return folder


@pytest.fixture(scope="session")
def records(swept: Path) -> Records:
    return collect(swept)

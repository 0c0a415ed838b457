"""Two processes with gloo under the trainers: killed with SIGKILL, resumed, and the same masks on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "MASTER_ADDR": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONWARNINGS": "ignore",
}

pytestmark = pytest.mark.slow


def run(*command: str) -> int:
    """The exit code. What the processes print is on standard output, which pytest shows for a test that fails."""
    done = subprocess.run(
        [sys.executable, *command],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=500,
    )
    print(f"{command} ended with {done.returncode}:\n{done.stdout.decode(errors='replace')}")
    return done.returncode


def load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def compare(whole: dict[str, Any], other: dict[str, Any], steps: int) -> None:
    assert whole["step"] == other["step"] == steps
    for part in ("weights", "masks"):
        assert all(torch.equal(tensor, other[part][name]) for name, tensor in whole[part].items()), part
    assert sum(int(mask.sum()) for mask in whole["masks"].values()) == 32


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    script, per_epoch = str(HERE / "lightning_ranks.py"), 5
    assert run(script, str(tmp_path), "-1") == 0
    for path in (tmp_path / "saved").iterdir():
        path.unlink()
    assert run(script, str(tmp_path), str(2 * per_epoch + 2)) != 0
    assert run(script, str(tmp_path), "-1", "epoch=1.ckpt") == 0
    for rank in range(2):
        whole = load(tmp_path / f"whole-{rank}.pt")
        compare(whole, load(tmp_path / f"epoch=1.ckpt-{rank}.pt"), 4 * per_epoch)
        compare(whole, load(tmp_path / "whole-0.pt"), 4 * per_epoch)


def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script, steps = str(HERE / "transformers_ranks.py"), 24
    assert run(*launch, script, str(tmp_path), "-1", "start") == 0
    assert run(*launch, script, str(tmp_path), "15", "start") != 0
    assert run(*launch, script, str(tmp_path), "-1", "resume") == 0
    for rank in range(2):
        whole = load(tmp_path / f"whole-{rank}.pt")
        compare(whole, load(tmp_path / f"resumed-{rank}.pt"), steps)
        compare(whole, load(tmp_path / "whole-0.pt"), steps)

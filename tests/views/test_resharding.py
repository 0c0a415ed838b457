"""Saved on two ranks and killed; resumed on one, two and four ranks, with the masks of a training without a break."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = "flipout,flipout-paper,magnitude-uncertainty,lottery"


def run(folder: Path, ranks: int, layout: str, phase: str) -> list[int]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "resumed_training.py")]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(folder), layout, METHODS, phase], env=environment)
        for rank in range(ranks)
    ]
    return [process.wait(timeout=600) for process in processes]


@pytest.mark.slow
def test_a_killed_training_is_resumed_on_other_ranks(tmp_path: Path) -> None:
    assert run(tmp_path, 2, "fsdp", "start") == [-9, -9]
    for ranks, layout in ((1, "whole"), (2, "fsdp"), (4, "fsdp"), (4, "both")):
        assert run(tmp_path, ranks, layout, "resume") == [0] * ranks, (ranks, layout)
        assert len(list(tmp_path.glob(f"resume-{ranks}-{layout}-*.done"))) == ranks

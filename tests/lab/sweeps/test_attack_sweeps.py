"""Sweeps and runs under attack: kill -9 of the sweep and of its workers, folders that cannot be written to, a full
disk, and a clock that jumps. No run is lost, and none that has finished is run again."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flipout_lab.errors import LabError
from flipout_lab.runs.settings import validated
from flipout_lab.runs.training import train
from flipout_lab.sweeps import Store, sweep
from flipout_lab.sweeps.execution import SweepView
from flipout_lab.sweeps.grid import parse_grid
from flipout_lab.sweeps.local_engine import LocalEngine
from tests.attacks import seeds

GRID = """
[base]
data = "digits"
model = "mlp"
epochs = 4
width = 0.25
sparsity = 0.9

[[part]]
method = ["flipout", "magnitude"]
seed = [0, 1]
"""
SETTINGS = {"data": "digits", "model": "mlp", "epochs": 3, "width": 0.25, "sparsity": 0.9, "method": "flipout"}


def finished(out: Path) -> dict[str, int]:
    """The runs that have finished, and when."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/result.json")}


def command(grid: Path, out: Path) -> list[str]:
    options = ["--out", str(out), "--jobs", "2", "--threads", "1", "--quiet"]
    return [sys.executable, "-m", "flipout_lab", "sweep", str(grid), *options]


def workers_of(process: int) -> list[int]:
    """The processes below a process."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue
        if parent == process:
            found += [int(folder.name), *workers_of(int(folder.name))]
    return found


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("seed", seeds(2))
def test_a_killed_sweep_continues(tmp_path: Path, seed: int) -> None:
    """The sweep or one of its workers is killed again and again; the results are those of a sweep without kills."""
    (tmp_path / "grid.toml").write_text(GRID)
    subprocess.run(command(tmp_path / "grid.toml", tmp_path / "whole"), check=True)
    chance, out, kept = random.Random(f"sweep {seed}"), tmp_path / "parts", dict[str, int]()
    for _ in range(5):
        running = subprocess.Popen(command(tmp_path / "grid.toml", out), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + chance.uniform(2, 12)
        while time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.05)
        workers = workers_of(running.pid)
        if workers and chance.random() < 0.5:
            kill(chance.choice(workers))  # the sweep tries its run again, or all of them fail and it ends
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and running.poll() is None:
                time.sleep(0.05)
        kill(running.pid)
        running.wait()
        for worker in workers:  # which end with the sweep
            while Path(f"/proc/{worker}").exists():
                time.sleep(0.05)
        assert kept.items() <= finished(out).items(), f"a finished run was lost or run again, seed {seed}"
        kept = finished(out)
    subprocess.run(command(tmp_path / "grid.toml", out), check=True)
    assert kept.items() <= finished(out).items()
    assert finished(out).keys() == finished(tmp_path / "whole").keys()
    for name in finished(out):
        one, other = ((folder / name / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", out))
        assert one == other, name
        lines = (out / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]


@contextmanager
def powerless() -> Iterator[None]:
    """Act as somebody who may not write everywhere, if this is root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.skipif(os.name != "posix", reason="needs users")
@pytest.mark.parametrize("done", [False, True])
def test_a_folder_that_becomes_read_only(tmp_path: Path, done: bool) -> None:
    """A run and a sweep there end with a sentence, and what is there is unharmed."""
    folder = tmp_path / "run"
    train(validated(SETTINGS), folder)
    if not done:
        (folder / "result.json").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    view, engine = SweepView(Console(file=io.StringIO()), quiet=True), LocalEngine(1, 1)
    with powerless():
        for out in (folder, tmp_path / "new"):
            with pytest.raises(LabError, match="cannot be written to"):
                train(validated(SETTINGS), out)
            with pytest.raises(LabError, match="cannot be written to"):
                sweep([parse_grid("test", {"part": [SETTINGS]})], Store(str(out)), engine, view)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    folder.chmod(0o755)


@pytest.mark.parametrize("writes", [2, 5, 8])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """The run ends with the reason. With space again, the same command ends with the same bytes."""
    train(validated(SETTINGS), tmp_path / "whole")
    count, replace = 0, Path.replace

    def full(self: Path, target: Any) -> Path:
        nonlocal count
        count += 1
        if count >= writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(LabError, match="disk is full"):
            train(validated(SETTINGS), tmp_path / "parts")
    assert not list((tmp_path / "parts").rglob(".*.part*"))
    train(validated(SETTINGS), tmp_path / "parts")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Times in results are those of a clock that cannot jump, and nothing else depends on the time."""
    train(validated(SETTINGS), tmp_path / "whole")
    now, calls = time.time, 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return now() + (jump if calls % 2 else 0)

    monkeypatch.setattr(time, "time", jumping)
    result = train(validated(SETTINGS), tmp_path / "jumped")
    assert 0 <= result["seconds"] < 1e6
    lines = (tmp_path / "jumped" / "metrics.jsonl").read_text().splitlines()
    assert all(0 <= value < 1e6 for line in lines for key, value in json.loads(line).items() if "second" in key)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "jumped"))
    assert one == other
    os.utime(tmp_path / "jumped" / "config.json", (0, 0))
    shutil.copytree(tmp_path / "jumped", tmp_path / "copied")
    assert train(validated(SETTINGS), tmp_path / "copied")["test_accuracy"] == result["test_accuracy"]

"""Sweeps on this machine: no run is repeated, no result is lost, no worker outlives the sweep."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from rich.console import Console

from flipout_lab.errors import LabError
from flipout_lab.reports import write_report
from flipout_lab.reports.records import collect, known_results, results_json
from flipout_lab.sweeps import Store, SweepOutcome, sweep
from flipout_lab.sweeps.execution import SweepView
from flipout_lab.sweeps.grid import Grid, parse_grid
from flipout_lab.sweeps.local_engine import Job, JobUpdate, Listener, LocalEngine
from flipout_lab.sweeps.store import RunMirror
from tests.lab.helpers import untimed

BASE = {"data": "digits", "model": "mlp", "epochs": 2, "width": 0.25}


def grid(*parts: dict[str, Any], **base: Any) -> Grid:
    return parse_grid("test", {"base": {**BASE, **base}, "part": list(parts)})


def run(chosen: Grid, out: Path | str, jobs: int = 2, **options: Any) -> tuple[SweepOutcome, str]:
    console = Console(record=True, width=200, file=io.StringIO())
    outcome = sweep([chosen], Store(str(out)), LocalEngine(jobs, 1), SweepView(console), **options)
    console.print(outcome.table().rich())
    return outcome, console.export_text()


def results(out: Path) -> dict[str, Any]:
    found = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}
    return {name: untimed(result) for name, result in found.items()}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"mine_{tmp_path.name.replace('-', '_')}.py"
    yield path
    sys.modules.pop(path.stem, None)


def test_all_runs_are_run_and_then_skipped(tmp_path: Path) -> None:
    chosen = grid({"name": "a", "method": ["magnitude", "random"], "seed": [0, 1]})
    outcome, printed = run(chosen, tmp_path)
    assert set(outcome.status.values()) == {"done"}
    assert len(results(tmp_path)) == 4
    assert "4/4" in printed
    described = json.loads((tmp_path / "sweep.json").read_text())
    assert set(described["grids"]["test"]["parts"]["a"]) == set(outcome.status)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    outcome, printed = run(chosen, tmp_path)
    assert set(outcome.status.values()) == {"skipped"}
    assert "4 runs, 4 of them already finished" in printed
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}


def test_known_results_are_not_repeated_and_stay_in_reports(tmp_path: Path) -> None:
    """A grid that was half run on another machine goes on from the results.json of its report."""
    chosen = grid({"name": "a", "method": "magnitude", "seed": [0, 1]})
    run(grid({"name": "a", "method": "magnitude", "seed": 0}), tmp_path / "there")
    stored = tmp_path / "results.json"
    stored.write_text(results_json(collect(tmp_path / "there")))
    known = known_results(stored)
    outcome, printed = run(chosen, tmp_path / "here", known=known)
    assert sorted(outcome.status.values()) == ["done", "skipped"]
    assert "2 runs, 1 of them already finished" in printed
    assert list(results(tmp_path / "here")) == [name for name, status in outcome.status.items() if status == "done"]
    records = collect(tmp_path / "here")
    assert all(record.accuracy is not None and record.parts == ("a",) for record in records.runs)
    page = write_report(records, tmp_path / "report")  # its figures of epochs and layers are those of the other run
    assert "Weights kept in each layer" in page.read_text()
    outcome, _ = run(chosen, tmp_path / "here")  # known results are remembered
    assert set(outcome.status.values()) == {"skipped"}
    stored.write_text(results_json(records))
    assert len(known_results(stored)) == 2


def test_runs_that_fail_for_the_same_reason_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    chosen = grid({"method": "magnitude", "seed": [0, 1, 2]}, data=str(tmp_path / "empty"))
    outcome, printed = run(chosen, tmp_path / "out")
    (reason,) = set(outcome.reasons.values())
    table = printed[printed.index("number") :]
    assert table.count(reason[:40]) == 1
    assert "and 2 more" in table


def test_a_download_that_fails_is_tried_once_and_other_runs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def offline(url: str, **_: object) -> None:
        asked.append(url)
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "get", offline)
    chosen = grid({"method": "magnitude", "seed": [0, 1]}, {"method": "magnitude", "seed": [0, 1], "data": "mnist"})
    outcome, printed = run(chosen, tmp_path)
    assert sorted(outcome.status.values()) == ["done", "done", "failed", "failed"]
    assert "no network" in printed
    assert len(asked) == len(set(asked)) > 0
    assert all("train-images" in url for url in asked)


def test_more_workers_give_the_same_results(tmp_path: Path) -> None:
    chosen = grid({"method": ["flipout", "snip"], "seed": [0, 1]})
    run(chosen, tmp_path / "one", jobs=1)
    run(chosen, tmp_path / "three", jobs=3)
    assert results(tmp_path / "one") == results(tmp_path / "three")
    for path in (tmp_path / "one").glob("*/model.safetensors"):
        assert path.read_bytes() == (tmp_path / "three" / path.parent.name / path.name).read_bytes()


def test_a_run_that_diverges_is_recorded_and_the_others_continue(tmp_path: Path) -> None:
    chosen = grid({"learning_rate": [0.1, 1e20], "method": "magnitude"})
    outcome, printed = run(chosen, tmp_path)
    (failed,) = outcome.reasons
    assert sorted(outcome.status.values()) == ["done", "failed"]
    assert "diverged" in outcome.reasons[failed]
    assert "failed" in printed
    record = json.loads((tmp_path / failed / "failure.json").read_text())
    assert record["kind"] == "diverged"
    assert record["attempts"] == 1
    outcome, printed = run(chosen, tmp_path)  # it would diverge again, so it is reported but not repeated
    assert sorted(outcome.status.values()) == ["failed", "skipped"]
    assert "2 runs, 2 of them already finished" in printed
    outcome, printed = run(chosen, tmp_path, retry_diverged=True)
    assert "2 runs, 1 of them already finished" in printed


def test_a_run_that_dies_is_tried_twice_more(tmp_path: Path, module: Path) -> None:
    """The network kills its process the first two times that it is built."""
    module.write_text(
        "import os, signal, pathlib\n"
        "from torch import nn\n"
        "def dies(shape, classes, width):\n"
        f"    died = pathlib.Path({str(tmp_path / 'died')!r})\n"
        "    times = int(died.read_text()) if died.exists() else 0\n"
        "    if times < int(pathlib.Path('deaths').read_text()):\n"
        "        died.write_text(str(times + 1))\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    chosen = grid({"model": f"{module.stem}:dies", "method": "magnitude"})
    (tmp_path / "deaths").write_text("2")
    outcome, printed = run(chosen, tmp_path / "out")
    assert list(outcome.status.values()) == ["done"], printed
    assert printed.count("died, retry") == 2
    assert "killed by signal 9" in printed
    (tmp_path / "deaths").write_text("99")
    outcome, _ = run(chosen.with_settings(seed=1), tmp_path / "out")
    ((name, reason),) = outcome.reasons.items()
    assert "tried 3 times" in reason
    assert json.loads((tmp_path / "out" / name / "failure.json").read_text())["kind"] == "died"
    (tmp_path / "deaths").write_text("0")  # a run that died may succeed in the next sweep
    outcome, _ = run(chosen.with_settings(seed=1), tmp_path / "out")
    assert list(outcome.status.values()) == ["done"]
    assert not (tmp_path / "out" / name / "failure.json").exists()


def test_an_unexpected_error_keeps_its_traceback(tmp_path: Path, module: Path) -> None:
    module.write_text("def broken(shape, classes, width):\n    return 1 / 0\n")
    outcome, _ = run(grid({"model": f"{module.stem}:broken", "method": "magnitude"}), tmp_path / "out")
    ((name, reason),) = outcome.reasons.items()
    assert "ZeroDivisionError" in reason
    assert "1 / 0" in json.loads((tmp_path / "out" / name / "failure.json").read_text())["traceback"]


def test_one_sweep_per_folder(tmp_path: Path) -> None:
    import filelock

    with filelock.FileLock(tmp_path / "sweep.lock"), pytest.raises(LabError, match="another sweep is running"):
        run(grid({"seed": 0}), tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot be written to"):
        run(grid({"seed": 0}), tmp_path / "file" / "out")


def test_threads_stay_what_they_were(tmp_path: Path) -> None:
    run(grid({"seed": 0, "method": "magnitude"}), tmp_path)
    store, other = Store(str(tmp_path)), grid({"seed": 1, "method": "magnitude"})
    engine = LocalEngine(1)
    engine.threads = 2
    sweep([other], store, engine, SweepView(Console(), quiet=True))
    used = [json.loads(path.read_text())["versions"]["threads"] for path in tmp_path.glob("*/config.json")]
    assert used == [1, 1]
    with pytest.raises(LabError, match="started with 1 threads per run"):
        sweep([other], store, LocalEngine(1, 2), SweepView(Console(), quiet=True))


def test_a_run_that_left_the_grid_is_not_missing(tmp_path: Path) -> None:
    run(grid({"name": "a", "method": "magnitude", "seed": 0}), tmp_path)
    run(grid({"name": "a", "method": "magnitude", "seed": 1}), tmp_path)
    (left,) = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert "seed1" in left


def test_parts_are_listed_in_the_order_of_the_grid(tmp_path: Path) -> None:
    whole = grid({"name": "a", "method": "random"}, {"name": "b", "method": "magnitude"}, epochs=1)
    run(whole.only(["b"]), tmp_path)
    run(whole, tmp_path)
    described = json.loads((tmp_path / "sweep.json").read_text())
    assert list(described["grids"]["test"]["parts"]) == ["a", "b"]
    assert list(described["runs"]) == [planned.name for planned in whole.runs()]
    run(whole.only(["b"]), tmp_path)
    assert set(json.loads((tmp_path / "sweep.json").read_text())["runs"]) == set(described["runs"])


def test_a_damaged_description_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(LabError, match=r"damaged \(threads"):
        run(grid({"seed": 0}), tmp_path)


def test_a_worker_that_is_stopped_from_outside_is_tried_again(tmp_path: Path, module: Path) -> None:
    """As when a machine shuts down: the run continues from its checkpoint."""
    module.write_text(
        "import os, signal, pathlib\n"
        "from torch import nn\n"
        "class Stopping(nn.Linear):\n"
        "    def forward(self, x):\n"
        f"        stopped = pathlib.Path({str(tmp_path / 'stopped')!r})\n"
        "        if self.training and not stopped.exists():\n"
        "            stopped.write_text('')\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return super().forward(x)\n"
        "def stopping(shape, classes, width):\n"
        "    return nn.Sequential(nn.Flatten(), Stopping(64, 10))\n"
    )
    outcome, printed = run(grid({"model": f"{module.stem}:stopping", "method": "magnitude"}), tmp_path / "out")
    assert list(outcome.status.values()) == ["done"]
    assert "stopped at step 1 of 24, and saved" in printed


def test_a_result_that_is_missing_in_the_folder_is_a_failure(tmp_path: Path) -> None:
    """Otherwise a cluster whose machines do not share the folder would outcome success."""

    class Elsewhere(LocalEngine):
        def run(self, jobs: Sequence[Job], listener: Listener) -> None:
            for job in jobs:
                listener.ended(job, JobUpdate("done", {"test_accuracy": 1.0, "seconds": 1.0, "dead_layers": []}), 1)

    view = SweepView(Console(file=io.StringIO()), quiet=True)
    outcome = sweep([grid({"seed": 0})], Store(str(tmp_path)), Elsewhere(1), view)
    assert "not the same folder on every machine" in next(iter(outcome.reasons.values()))


def test_a_mirror_repairs_files_and_keeps_finished_results(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "checkpoint").mkdir(parents=True)
    (here / "checkpoint" / "step-1.ckpt").write_bytes(b"x" * 100)
    (here / "metrics.jsonl").write_text("1\n")
    mirror = RunMirror(f"file://{there}", here)
    mirror.push()
    (there / "checkpoint" / "step-1.ckpt").write_bytes(b"x" * 10)  # incomplete, as after a kill
    mirror.push()
    assert (there / "checkpoint" / "step-1.ckpt").read_bytes() == b"x" * 100
    (there / "result.json").write_text("{}")  # another attempt finished first
    (here / "metrics.jsonl").write_text("2\n")
    mirror.push()
    assert (there / "metrics.jsonl").read_text() == "1\n"
    assert not list(there.glob("**/.*"))


def test_results_at_a_url(tmp_path: Path) -> None:
    """The same bytes as in a folder; a second sweep skips what is finished."""
    chosen = grid({"method": ["magnitude", "flipout"], "seed": 0})
    url = f"file://{tmp_path}/elsewhere"
    run(chosen, tmp_path / "here")
    outcome, _ = run(chosen, url)
    assert set(outcome.status.values()) == {"done"}
    assert results(tmp_path / "here") == results(tmp_path / "elsewhere")
    for path in (tmp_path / "here").glob("*/model.safetensors"):
        assert path.read_bytes() == (tmp_path / "elsewhere" / path.parent.name / path.name).read_bytes()
    assert not list((tmp_path / "elsewhere").glob("*/checkpoint/*.ckpt"))
    outcome, _ = run(chosen, url)
    assert set(outcome.status.values()) == {"skipped"}
    with pytest.raises(LabError, match="cannot be opened"):
        run(chosen, "nonsense://x")


GRID = """
[base]
data = "digits"
model = "mlp"
epochs = {epochs}
batch_size = 16
learning_rate = 0.03
[[part]]
method = ["flipout", "magnitude"]
seed = [0, 1]
sparsity = 0.9
"""


def command(path: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "flipout_lab", "sweep", str(path), "--out", str(out), "-j", "2", "--threads", "1"]


def workers_of(out: Path) -> set[int]:
    """The ids of the processes that hold the lock of a run in this folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                held = {str(link.readlink()) for link in (entry / "fd").iterdir()}
            except OSError:
                continue
            if any(path.startswith(str(out)) and path.endswith("run.lock") for path in held):
                found.add(int(entry.name))
    return found


def wait_for_epoch(out: Path, sweeping: subprocess.Popen[str]) -> None:
    """Wait until two runs have a checkpoint."""
    while sum(1 for _ in out.glob("*/checkpoint/*.ckpt")) < 2:
        assert sweeping.poll() is None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_was_killed_and_restarted_has_the_same_results(tmp_path: Path, how: signal.Signals) -> None:
    """Its workers end with it, and the results are those of an uninterrupted sweep."""
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(epochs=8))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*command(path, whole), "--quiet"], check=True, capture_output=True)
    sweeping = subprocess.Popen(command(path, parts), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_epoch(parts, sweeping)
    sweeping.send_signal(how)
    _, error_output = sweeping.communicate()
    while workers_of(parts):  # they end by themselves, or this test hangs
        pass
    if how != signal.SIGKILL:
        assert sweeping.returncode == 130
        assert "run the same command again" in error_output
        assert "Traceback" not in error_output
    assert len(results(parts)) < 4
    subprocess.run([*command(path, parts), "--quiet"], check=True, capture_output=True)
    assert results(whole) == results(parts)
    for model in whole.glob("*/model.safetensors"):
        assert model.read_bytes() == (parts / model.parent.name / model.name).read_bytes()

"""Files of runs and sweeps that are valid JSON of the wrong shape are named, with what to do."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flipout_lab import LabError, load_run, train
from flipout_lab.paper import results_page
from flipout_lab.reports import Records, collect, write_report
from flipout_lab.runs.run_folder import read_settings
from flipout_lab.runs.run_views import run_tables
from flipout_lab.sweeps import Store, sweep
from flipout_lab.sweeps.execution import divergence_reason
from flipout_lab.sweeps.grid import parse_grid, read_grid
from tests.lab.small_sweep import InProcessEngine

SHAPES: list[Any] = [{}, [], 3, "x", None, {"settings": 3}, {"grids": []}, {"error": 3}]


@pytest.fixture
def run_copy(swept: Path, tmp_path: Path) -> Path:
    one = next(path.parent for path in swept.glob("*flipout*/model.safetensors"))
    return Path(shutil.copytree(one, tmp_path / "runs" / one.name))


@pytest.mark.parametrize("content", SHAPES)
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "failure.json"])
def test_files_of_a_run(run_copy: Path, name: str, content: Any) -> None:
    settings = read_settings(run_copy)
    (run_copy / name).write_text(json.dumps(content))
    if name == "failure.json":
        (run_copy / "result.json").unlink()
        with pytest.raises(LabError, match=r"failure\.json.*(damaged|cannot be read)"):
            divergence_reason(Store(str(run_copy.parent)), run_copy.name)
    else:
        with pytest.raises(LabError, match=rf"{name}.* is damaged.*; "):
            list(run_tables(run_copy))
    with pytest.raises(LabError, match=rf"{name}.* is damaged"):
        collect(run_copy.parent)
    if name == "config.json":
        with pytest.raises(LabError, match=r"config\.json"):
            load_run(run_copy)
    if name in ("config.json", "result.json"):
        with pytest.raises(LabError, match=rf"{name} is damaged"):
            train(settings, run_copy)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("result.json", "test_accuracy", "high"),
        ("result.json", "layers", {"a": 3}),
        ("result.json", "prunings", [1]),
        ("result.json", "dead_layers", 3),
        ("result.json", "flips", {"a": {"kept": 1}}),
        ("config.json", "versions", 3),
        ("config.json", "network", {"shape": [1, 2], "classes": 3}),
        ("config.json", "network", 3),
    ],
)
def test_one_wrong_value(run_copy: Path, name: str, key: str, value: Any) -> None:
    content = json.loads((run_copy / name).read_text())
    (run_copy / name).write_text(json.dumps({**content, key: value}))
    with pytest.raises(LabError, match=rf"{name} is damaged \({key}"):
        list(run_tables(run_copy))
    with pytest.raises(LabError, match=rf"{name} is damaged \({key}"):
        collect(run_copy.parent)


@pytest.mark.parametrize(
    "content", [*SHAPES, {"threads": 1, "grids": {"a": 3}, "runs": {}}, {"threads": 1, "grids": {}, "runs": {"a": 3}}]
)
def test_the_description_of_a_sweep(content: Any, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    grid = parse_grid("test", {"part": [{"seed": 0}]})
    with pytest.raises(LabError, match=r"sweep\.json.* is damaged"):
        sweep([grid], Store(str(tmp_path)), InProcessEngine(), None)  # type: ignore[arg-type]
    with pytest.raises(LabError, match=r"sweep\.json is damaged"):
        collect(tmp_path)
    assert json.loads((tmp_path / "sweep.json").read_text()) == content


def test_a_part_with_a_run_that_is_not_listed(run_copy: Path) -> None:
    content = {"threads": 1, "grids": {"g": {"title": "t", "parts": {"p": [run_copy.name]}}}, "runs": {}}
    (run_copy.parent / "sweep.json").write_text(json.dumps(content))
    assert [run.parts for run in collect(run_copy.parent).runs] == [("p",)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title = '\xff\xfe'", "mine is not valid TOML: .*utf-8"),
        (b"[base]\nrecipe = 3\n[[part]]\nseed = 0", "recipe is 3; give the name of a recipe in quotes"),
        (b"[base]\nrecipe = ['a']\n[[part]]\nseed = 0", r"recipe is \['a'\]; give the name of a recipe in quotes"),
        (
            b"[[part]]\nmethod = 'snip'\nrounds = [1, 0]",
            "part 'part 1' of the grid mine has an invalid run: rounds is 0",
        ),
        (b"[[part]]\np = [2.0, -1.0]", "has an invalid run: p is -1.0; give at least 0"),
        (b"[[part]]\nmethod = 'deep-r'\nl1 = -1.0", "has an invalid run: l1 is -1.0"),
        (b"[[part]]\nmethod = 'hoyer-square'\nthreshold = -1.0", "has an invalid run: .*threshold is -1.0"),
        (b"[[part]]\nepochs = 1\nprunings = 5000", "has an invalid run: 5000 prunings do not fit into the"),
        (b"[[part]]\nlearning_rate = inf", "has an invalid run: --learning-rate is inf"),
    ],
)
def test_grids(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(LabError, match=message):
        read_grid(tmp_path / "mine.toml").runs()


@pytest.mark.parametrize("number", [0, 3])
def test_a_full_disk_during_a_report(
    number: int, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    real, calls = Figure.savefig, []

    def full(self: Any, *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) > number:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(LabError, match=r"disk is full: .*report"):
        write_report(records, tmp_path / "report")
    with pytest.raises(LabError, match="the disk is full"):
        results_page.render_results_page([records], "x", tmp_path)

"""A user's own method is used like a built-in one: `module:Class`, or one class with `@flipout.register`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import pytest

import flipout
from flipout.methods.options import Options, ScheduleChoice, schedule_for
from flipout.methods.registry import PALETTE
from flipout_lab import LabError, make_settings, train
from flipout_lab.reports import collect
from flipout_lab.reports.charts import styles
from flipout_lab.reports.labels import label_runs
from flipout_lab.runs.pruning import attach
from tests.helpers import mlp, sgd

SOURCE = '''
from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Unpack

import flipout
from flipout.methods.options import InSteps, Options, ScheduleChoice, schedule_for


def score(weight, *, power):
    return weight.abs() ** power


class Powerful(flipout.Pruner):
    """Weights whose power is small.

    Args:
        power: exponent in [0, 4]
        shape: what is [not] used
    """

    def __init__(
        self,
        model,
        optimizer,
        *,
        sparsity: float,
        steps: int,
        power: float = 1.0,
        shape: Literal["round", "square"] = "round",
        careful: bool = False,
        sizes: tuple[int, ...] = (1, 2),
        warm_up: Annotated[int, InSteps] = 0,
        limit: float | None = 0.5,
        schedule: ScheduleChoice = None,
        **options: Unpack[Options],
    ) -> None:
        self.given = {"power": power, "shape": shape, "careful": careful}
        self.given |= {"sizes": sizes, "warm_up": warm_up, "limit": limit}
        planned = schedule_for(schedule, sparsity, steps)
        super().__init__(model, optimizer, criterion=partial(score, power=power), schedule=planned, **options)


class Demanding(Powerful):
    def __init__(self, model, optimizer, *, sparsity: float, steps: int, strength: int) -> None:
        super().__init__(model, optimizer, sparsity=sparsity, steps=steps)


class Clashing(Powerful):
    def __init__(self, model, optimizer, *, sparsity: float, steps: int, momentum: float = 0.9) -> None:
        super().__init__(model, optimizer, sparsity=sparsity, steps=steps)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    yield name
    sys.modules.pop(name, None)


def test_its_help(module: str, typed: Any) -> None:
    code, said = typed("train", "--method", f"{module}:Powerful", "--help")
    assert code == 0
    own = said[said.index("This method only") :]
    for words in (
        "exponent in [0, 4] [default: 1]",
        "what is [not] used [default: round]",
        "round|square",
        "--careful",
        "[default: 1,2]",
        "(in epochs) [default: 0]",
    ):
        assert words in own
    assert "--schedule" in said


def test_its_options_reach_the_constructor(module: str) -> None:
    text: dict[str, Any] = {
        "power": "2",
        "shape": "square",
        "careful": True,
        "sizes": "3",
        "warm_up": "0.5",
        "limit": "none",
    }
    settings = make_settings(method=f"{module}:Powerful", epochs=4, **text)
    model = mlp()
    pruner: Any = attach(settings, model, sgd(model), 10, lambda _: [])
    expected = {"power": 2.0, "shape": "square", "careful": True, "sizes": (3,), "warm_up": 5, "limit": None}
    assert pruner.given == expected
    assert make_settings(method=f"{module}:Powerful", power=1) == make_settings(method=f"{module}:Powerful")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Powerful", ["--shape", "flat"], "--shape is 'flat'"),
        ("Powerful", ["--p", "2"], "Powerful takes no --p"),
        ("Powerful", ["--powr", "2"], "--power"),
        ("Powerless", [], "has no class 'Powerless'"),
        ("score", [], "not a method"),
        ("Demanding", [], "Demanding needs --strength"),
        ("Clashing", [], "'momentum'"),
    ],
)
def test_mistakes_are_explained(name: str, options: list[str], message: str, module: str, typed: Any) -> None:
    code, said = typed("train", "--method", f"{module}:{name}", *options)
    assert code == 2
    assert message in said


def test_train_plan_sweep_report_show(module: str, tmp_path: Path, typed: Any) -> None:
    method = f"{module}:Powerful"
    code, said = typed("train", "--method", method, "--epochs", "1", "--power", "3", "--out", "one[/b]")
    assert (code, "saved in one[/b]" in said) == (0, True)
    code, said = typed("show", "one[/b]")
    assert (code, "power 3," in " ".join(said.split())) == (0, True)  # lines are wrapped
    code, said = typed("plan", "--method", method, "--epochs", "2", "--prunings", "3")
    assert (code, "2,522" in said) == (0, True)
    grid = f'[base]\nepochs = 1\nwidth = 0.25\n[[part]]\nmethod = "{method}"\npower = [1.0, 2.0]\n'
    (tmp_path / "grid.toml").write_text(grid)
    code, said = typed("sweep", "grid.toml", "--out", "swept", "-j", "2", "--threads", "1", "--set", "careful=true")
    assert code == 0, said
    assert f"mlp {method}, width 0.25, power 2, careful yes" in said
    code, said = typed("report", "swept")
    assert code == 0
    assert "Powerful, power 2" in (tmp_path / "swept" / "report" / "index.html").read_text()


def test_results_outlive_the_code(module: str, tmp_path: Path, typed: Any) -> None:
    for power in (1.0, 2.0):
        settings = make_settings(method=f"{module}:Powerful", epochs=1, width=0.25, power=power)
        train(settings, tmp_path / "runs" / f"{power}")
    (tmp_path / f"{module}.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    sys.modules.pop(module)
    with pytest.raises(LabError, match="there is no module"):
        make_settings(method=f"{module}:Powerful")
    records = collect(tmp_path / "runs")
    assert sorted(label_runs(records.runs).values()) == [f"{module}:Powerful, power 1", f"{module}:Powerful, power 2"]
    assert {style.colour for style in styles(records.runs).values()} <= set(PALETTE)
    for command in (("report", "runs"), ("report", "runs/report/results.json", "--out", "again"), ("show", "runs/1.0")):
        assert typed(*command)[0] == 0
    assert f"{module}:Powerful" in (tmp_path / "again" / "index.html").read_text()


@pytest.fixture
def registered() -> Iterator[type[flipout.Pruner]]:
    """One class with a decorator, and nothing else."""
    before = dict(flipout.METHODS._records)

    @flipout.register("by-luck", title="Sheer luck", about="weights that are [out] of luck", colour="#123456")
    class Luck(flipout.Pruner):
        """Prunes at random.

        Args:
            charm: number of charms
        """

        def __init__(
            self,
            model: Any,
            optimizer: Any,
            *,
            sparsity: float,
            steps: int,
            charm: int = 7,
            schedule: ScheduleChoice = None,
            **options: Unpack[Options],
        ) -> None:
            planned = schedule_for(schedule, sparsity, steps)
            super().__init__(model, optimizer, criterion=flipout.criteria.random, schedule=planned, **options)

    yield Luck
    flipout.METHODS._records.clear()
    flipout.METHODS._records.update(before)


@pytest.mark.usefixtures("registered")
def test_a_registered_method_is_everywhere(tmp_path: Path, typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, said = typed("methods")
    assert "by-luck" in said
    assert "weights that are [out] of luck" in said
    assert "--charm 7" in said
    _, said = typed("train", "--method=by-luck", "--help")
    assert "This method only: by-luck" in said
    assert "number of charms [default: 7]" in said
    (tmp_path / "grid.toml").write_text('[base]\nepochs = 1\n[[part]]\nmethod = "by-luck"\ncharm = [7, 13]\n')
    code, said = typed("sweep", "grid.toml", "--dry-run")
    assert code == 0
    assert "mlp by-luck, 95.0000% pruned" in said
    assert "mlp by-luck, charm 13, 95.0000% pruned" in said
    for charm in (7, 13):
        train(make_settings(method="by-luck", epochs=1, width=0.25, charm=charm), tmp_path / "runs" / str(charm))
    records = collect(tmp_path / "runs")
    assert {label: style.colour for label, style in styles(records.runs).items()} == {
        "Sheer luck": "#123456",
        "Sheer luck, charm 13": "#123456",
    }
    assert typed("report", "runs")[0] == 0
    page = (tmp_path / "runs" / "report" / "index.html").read_text()
    assert "Sheer luck, charm 13" in page
    assert "#123456" in page
    kept = json.loads((tmp_path / "runs" / "report" / "results.json").read_text())
    assert [run["settings"].get("charm") for run in kept["runs"]] == [13, None]


def test_a_recipe_with_its_options(module: str, tmp_path: Path, typed: Any) -> None:
    (tmp_path / "mine.toml").write_text(f'method = "{module}:Powerful"\npower = 3.0\nepochs = 1\n')
    assert make_settings("mine.toml").option("power") == 3.0
    _, said = typed("train", "--recipe", "mine.toml", "--help")
    assert "[default: 3]" in said
    (tmp_path / "other.toml").write_text("limit = 3.0\n")  # an option of no registered method
    assert make_settings("other.toml", method=f"{module}:Powerful").option("limit") == 3.0
    with pytest.raises(LabError, match=r"other.toml: 'limit'"):
        make_settings("other.toml")

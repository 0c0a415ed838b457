"""The commands for single runs, and those that list what is available."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flipout_lab import cli
from flipout_lab.runs import run_views
from tests.lab.helpers import flipout


def test_train_show_evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    command = [
        "train",
        "--data",
        "digits",
        "--model",
        "mlp",
        "--method",
        "flipout",
        "--sparsity",
        "0.95",
        "--epochs",
        "3",
    ]
    assert flipout(monkeypatch, *command, "--seed", "0", "--out", out) == 0
    text = capsys.readouterr().out
    assert "epoch 3  loss" in text
    assert "2,522 of 50,432" in text
    assert flipout(monkeypatch, *command, "--seed", "0", "--out", out) == 0
    assert "is already finished; nothing was run" in capsys.readouterr().out
    assert flipout(monkeypatch, "show", out) == 0
    assert "5.weight" in capsys.readouterr().out
    assert flipout(monkeypatch, "evaluate", out) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert f"{result['test_accuracy']:.4%} of 360 test images of digits" in capsys.readouterr().out


def test_quiet_says_nothing_and_the_folder_is_named_by_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flipout(monkeypatch, "train", "--epochs", "2", "--milestones", "10,20", "--quiet", "--validate") == 0
    assert capsys.readouterr().out == ""
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("digits-mlp-flipout-0.95-seed0-")
    assert json.loads((run / "config.json").read_text())["settings"]["milestones"] == [10, 20]
    assert flipout(monkeypatch, "show", str(run)) == 0
    assert "validation accuracy" in capsys.readouterr().out


def test_plan_needs_no_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        flipout(monkeypatch, "plan", "--model", "vgg19", "--sparsity", "0.999", "--epochs", "350", "--recipe", "paper")
        == 0
    )
    text = capsys.readouterr().out
    assert "20,024,000 weights, 350 epochs of 391 steps" in text
    assert "125,120" in text
    assert "20,024 " in text
    assert flipout(monkeypatch, "plan", "--method", "snip") == 2
    assert "does not prune in steps" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "says"), [("methods", "--horizon"), ("models", "11,164,352"), ("data", "9,469")])
def test_lists(command: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert flipout(monkeypatch, command) == 0
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--model", "vgg91"], "error: unknown model 'vgg91'; did you mean 'vgg19'?"),
        (["train", "--method", "snip", "--p", "3"], "error: snip takes no --p"),
        (["train", "--sparsity", "none"], "error: flipout needs a sparsity"),
        (["show", "/nonexistent"], "is not the folder of a run"),
        (["evaluate", "/nonexistent"], "is not the folder of a run"),
    ],
)
def test_errors_without_a_traceback(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flipout(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_wrong_option_suggests_the_right_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flipout(monkeypatch, "train", "--sparsty", "0.5") == 2
    assert "--sparsity" in capsys.readouterr().err


def test_an_unfinished_run_can_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.lab.helpers import StopAt

    monkeypatch.setattr(cli.run_commands, "view_for", lambda *_: StopAt(20))
    assert flipout(monkeypatch, "train", "--epochs", "3", "--out", str(tmp_path)) == 130
    complaint = capsys.readouterr().err
    assert "stopped at step 20 of 36, and saved. To continue, run the same command again" in complaint
    assert f"flipout train --epochs 3 --out {tmp_path}" in complaint
    assert flipout(monkeypatch, "show", str(tmp_path)) == 0
    assert "not finished: 1 epochs are done" in capsys.readouterr().out
    assert flipout(monkeypatch, "evaluate", str(tmp_path)) == 2
    assert "the run is not finished" in capsys.readouterr().err


def test_prunable_weights_are_those_of_the_library() -> None:
    from flipout_lab import build

    assert run_views.prunable_weights(build("lenet-5", (1, 28, 28))) == 430_500

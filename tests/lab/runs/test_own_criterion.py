"""Runs with a user's criterion, with the aim test, and with flips and live paths in the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flipout_lab import LabError, make_settings, train
from flipout_lab.errors import StoppedError
from tests.lab.helpers import StopAt


def settings(**options: Any) -> Any:
    return make_settings(**{"epochs": 3, "sparsity": 0.9, **options})


def test_a_users_criterion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same criterion under another name prunes the same weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_score.py").write_text(
        "def score(weight, flips, *, p=4.0):\n    return weight.abs().pow(p) / (flips + 1)\n"
        "def largest(weight):\n    return -weight.abs()\n"
    )
    own = train(settings(criterion="my_score:score"), tmp_path / "own")
    ours = train(settings(), tmp_path / "ours")
    assert own["test_accuracy"] == ours["test_accuracy"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "ours"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    worse = train(settings(criterion="my_score:largest"), tmp_path / "largest")
    assert worse["nonzero"] == ours["nonzero"]
    with pytest.raises(LabError, match="my_score:largest takes no p"):
        train(settings(criterion="my_score:largest", p=1.0), tmp_path / "p")
    with pytest.raises(LabError, match="magnitude takes no --criterion"):
        settings(method="magnitude", criterion="my_score:score")
    sys.modules.pop("my_score")


def test_shots_are_counted_and_survive_an_interruption(tmp_path: Path) -> None:
    for_good = {"method": "flipout-paper"}
    whole = train(settings(aim=True, **for_good), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(settings(aim=True, **for_good), tmp_path / "parts", view=StopAt(17))
    parts = train(settings(aim=True, **for_good), tmp_path / "parts")
    assert whole["aim"] == parts["aim"]
    assert 0 < whole["aim"]["over_shoots"] < whole["aim"]["under_shoots"]
    without = train(settings(**for_good), tmp_path / "without")
    assert without["aim"] is None
    assert without["test_accuracy"] == whole["test_accuracy"]
    # Over-shoots of zero are sign flips, and the flips of a pruned weight stop where the shots do.
    lines = (tmp_path / "without" / "metrics.jsonl").read_text().splitlines()
    assert f'"flips": {whole["aim"]["over_shoots"]}' in lines[-1]


def test_flips_and_live_paths_are_in_the_result(tmp_path: Path) -> None:
    result = train(settings(), tmp_path / "flipout")
    counted = sum(sum(counts) for layer in result["flips"].values() for counts in layer.values())
    assert counted == result["prunable"]
    kept = sum(sum(layer["kept"]) for layer in result["flips"].values())
    assert kept == result["nonzero"]
    assert 0 < result["effective"] <= result["nonzero"]
    assert result["effective_sparsity"] == 1 - result["effective"] / result["prunable"]
    assert train(settings(method="magnitude"), tmp_path / "magnitude")["flips"] is None


def test_a_criterion_with_its_own_statistic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_drift.py").write_text(
        "import flipout\n"
        "class Drift(flipout.Statistic):\n"
        "    def __init__(self, weight, place):\n"
        "        super().__init__(weight, place)\n"
        "        self.state['start'] = weight.clone()\n"
        "    def value(self, weight, step):\n"
        "        return (weight - self.state['start']).abs()\n"
        "@flipout.criteria.with_statistics(drift=Drift)\n"
        "def moved(weight, drift):\n"
        "    return weight.abs() * drift\n"
    )
    result = train(settings(criterion="my_drift:moved"), tmp_path / "run")
    sys.modules.pop("my_drift")
    assert result["nonzero"] == round(result["prunable"] * 0.1)

"""Runs of the lab that prune larger units than a weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flipout_lab as lab
from flipout_lab import make_settings
from flipout_lab.errors import LabError
from flipout_lab.runs.pruning import check_method_options


@pytest.mark.parametrize(("granularity", "sparsity"), [("channel", 0.6), ("2:4", 0.5), ("8x1", 0.7)])
def test_a_run_counts_weights_and_multiply_adds(tmp_path: Path, granularity: str, sparsity: float) -> None:
    settings = make_settings(
        data="digits", model="mlp", method="flipout", sparsity=sparsity, granularity=granularity, epochs=2, compile="no"
    )
    result = lab.train(settings, tmp_path / "run")
    assert result["sparsity"] == pytest.approx(sparsity, abs=0.02)
    counted = result["multiply_adds"]
    assert counted["dense"] == result["prunable"]  # a perceptron uses each weight once
    assert counted["nonzero"] <= result["nonzero"]
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert stored["granularity"] == granularity
    assert lab.train(settings, tmp_path / "run") == result  # the stored run is read again


def test_a_run_with_a_budget(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": "digits", "model": "mlp", "method": "flipout", "epochs": 2, "compile": "no"}
    settings = make_settings(**options, sparsity=0.5, granularity="channel", target="macs", round_to="4")
    result = lab.train(settings, tmp_path / "run")
    counted = result["multiply_adds"]
    assert 0.35 < counted["nonzero"] / counted["dense"] <= 0.5
    with pytest.raises(LabError, match="target"):
        check_method_options(make_settings(**options, sparsity=0.5, target="macs"))


def test_nonsense_is_refused_before_anything_runs() -> None:
    with pytest.raises(LabError, match="granularity"):
        make_settings(data="digits", model="mlp", method="flipout", sparsity=0.5, granularity="3:2")
    with pytest.raises(LabError, match=r"keeps 1 of 4 weights: give sparsity=0\.75"):
        check_method_options(
            make_settings(data="digits", model="mlp", method="flipout", sparsity=0.5, granularity="1:4")
        )
    check_method_options(make_settings(data="digits", model="mlp", method="flipout", sparsity=0.75, granularity="1:4"))


def test_blocks_are_stored_in_one_form() -> None:
    first, second = (
        make_settings(data="digits", model="mlp", method="flipout", sparsity=0.5, granularity=text)
        for text in ("(16, 1)", "16x1")
    )
    assert first == second

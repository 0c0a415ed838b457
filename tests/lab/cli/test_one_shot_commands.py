"""`flipout prune` and `flipout sensitivity` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flipout_lab import load_run, make_settings, train

from .conftest import Typed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "dense"
    train(make_settings(data="digits", model="mlp", method="dense", epochs=3), folder)
    return folder


def test_a_pruned_run_is_a_run(run: Path, tmp_path: Path, typed: Typed) -> None:
    out = tmp_path / "pruned"
    code, printed = typed("prune", str(run), "--sparsity", "0.7", "--out", str(out), "--examples", "300")
    assert code == 0, printed
    assert "accuracy after" in printed
    result = json.loads((out / "result.json").read_text())
    model = load_run(out)
    kept = sum(int(parameter.count_nonzero()) for parameter in model.parameters() if parameter.ndim > 1)
    assert result["nonzero"] == kept == round(result["prunable"] * 0.3)
    assert result["test_accuracy"] > 0.85
    code, printed = typed("evaluate", str(out))
    assert code == 0
    assert f"{result['test_accuracy']:.4%}" in printed
    for command in (["show", str(out)], ["export", str(out), "--to", "sparse", "--out", str(tmp_path / "net")]):
        assert typed(*command)[0] == 0
    code, printed = typed("prune", str(run), "--sparsity", "0.7", "--out", str(out))
    assert code == 2
    assert "--out" in printed


def test_a_safetensors_file_needs_its_network(run: Path, tmp_path: Path, typed: Typed) -> None:
    file, out = str(run / "model.safetensors"), str(tmp_path / "pruned")
    code, printed = typed("prune", file, "--sparsity", "0.5", "--out", out)
    assert code == 2
    assert "--model" in printed
    options = ["--sparsity", "0.5", "--out", out, "--method", "wanda", "--granularity", "2:4"]
    code, printed = typed("prune", file, "--model", "mlp", "--data", "digits", *options)
    assert code == 0, printed
    assert load_run(out).training is False
    code, printed = typed("prune", str(run), "--model", "mlp", *options)
    assert code == 2


def test_an_error_of_the_library_is_one_sentence(run: Path, tmp_path: Path, typed: Typed) -> None:
    out = tmp_path / "pruned"
    code, printed = typed("prune", str(run), "--sparsity", "0.7", "--out", str(out), "--method", "nothing")
    assert code == 2
    assert "nothing" in printed
    assert not out.exists()


def test_sensitivity(run: Path, tmp_path: Path, typed: Typed) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    code, printed = typed(
        *("sensitivity", str(run), "--sparsities", "0.5,0.9", "--loss", "--limit", "0.1"),
        *("--examples", "100", "--plot", str(plot), "--method", "magnitude"),
    )
    assert code == 0, printed
    assert "90.00%" in printed
    assert plot.exists()
    code, printed = typed("sensitivity", str(run), "--sparsities", "much")
    assert code == 2
    assert "--sparsities" in printed

"""Runs whose layers compute with sparse kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flipout.kernels import has_kernels, speed_table
from flipout_lab import make_settings, train
from flipout_lab.errors import StoppedError
from flipout_lab.runs.run_folder import read_settings
from flipout_lab.runs.run_views import result_table
from tests.lab.helpers import StopAt, untimed

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the kernels were not built")

SETTINGS: dict[str, Any] = {"sparsity": 0.95, "epochs": 3, "batch_size": 64, "threads": 1}


@pytest.fixture(autouse=True)
def _fast_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of tests are too small for sparse kernels to be faster."""
    monkeypatch.setattr(speed_table, "highest_density", lambda *_, **__: 0.4)
    monkeypatch.setattr(speed_table, "remembered", lambda _, measure: measure())


@pytest.mark.parametrize("method", ["magnitude", "flipout"])
def test_an_interrupted_run_ends_with_the_same_bytes_and_says_which_layers_were_sparse(
    method: str, tmp_path: Path
) -> None:
    settings = make_settings(**SETTINGS, method=method)
    whole = train(settings, tmp_path / "whole")
    assert whole["sparse_layers"]
    assert any(whole["sparse_layers"][0] in str(row) for row in result_table(whole).rows)
    for step in (2, 31, 40):
        with pytest.raises(StoppedError):
            train(settings, tmp_path / "parts", view=StopAt(step))
    result = train(settings, tmp_path / "parts")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other
    assert untimed(result) == untimed(whole)


def test_kernels_can_be_switched_off_and_the_settings_say_so(tmp_path: Path) -> None:
    settings = make_settings(**SETTINGS, method="magnitude", sparse_kernels=False)
    dense = train(settings, tmp_path / "dense")
    assert dense["sparse_layers"] == []
    assert not read_settings(tmp_path / "dense").sparse_kernels
    sparse = train(make_settings(**SETTINGS, method="magnitude"), tmp_path / "sparse")
    assert sparse["nonzero"] == dense["nonzero"]
    assert sparse["test_accuracy"] == pytest.approx(dense["test_accuracy"], abs=0.02)

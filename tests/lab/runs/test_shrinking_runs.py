"""Runs that shrink their network while they train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flipout import NotShrunkWarning
from flipout.shrinking import shrinker
from flipout_lab import load_run, make_settings, train
from flipout_lab.errors import StoppedError
from flipout_lab.runs.run_views import epoch_line
from tests.lab.helpers import StopAt, untimed

SETTINGS: dict[str, Any] = {"method": "magnitude", "sparsity": 0.97, "epochs": 4, "batch_size": 64, "threads": 1}


@pytest.fixture(autouse=True)
def _free_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of a test is long enough to repay a shrink."""
    monkeypatch.setattr(shrinker, "FIXED_COST", 0)
    monkeypatch.setattr(shrinker, "COST_PER_WEIGHT", 0)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_shrinks_and_saves_the_whole_network(tmp_path: Path) -> None:
    result = train(make_settings(**SETTINGS), tmp_path / "shrunk")
    whole = train(make_settings(**SETTINGS, shrink=False), tmp_path / "whole")
    assert result["shrinks"]
    assert not whole["shrinks"]
    assert result["computed"] == result["shrinks"][-1]["weights"] < result["prunable"] == whole["computed"]
    assert result["nonzero"] == whole["nonzero"]
    assert result["test_accuracy"] == pytest.approx(whole["test_accuracy"], abs=0.02)
    states = [load_file(tmp_path / name / "model.safetensors") for name in ("shrunk", "whole")]
    assert {name: each.shape for name, each in states[0].items()} == {n: e.shape for n, e in states[1].items()}
    assert load_run(tmp_path / "shrunk")
    metrics = lines(tmp_path / "shrunk")
    for line in metrics:
        done = [shrink["weights"] for shrink in result["shrinks"] if shrink["step"] <= line["step"]]
        assert line["computed"] == (done[-1] if done else result["prunable"])
    assert metrics[-1]["computed"] == result["computed"]
    assert sum(line["epoch_seconds"] for line in metrics) == pytest.approx(result["seconds"], abs=0.01)
    assert f"computes with {result['computed']:,} weights" in epoch_line(metrics[-1])


@pytest.mark.parametrize("method", ["magnitude", "flipout"])
def test_an_interrupted_run_ends_with_the_same_bytes(method: str, tmp_path: Path) -> None:
    settings = make_settings(**{**SETTINGS, "method": method})
    whole = train(settings, tmp_path / "whole")
    assert whole["shrinks"]
    first, last = (whole["shrinks"][place]["step"] for place in (0, -1))
    for step in sorted({first, first + 3, last + 1}):
        with pytest.raises(StoppedError):
            train(settings, tmp_path / "parts", view=StopAt(step))
    result = train(settings, tmp_path / "parts")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other
    assert untimed(result) == untimed(whole)


class Untraceable(nn.Module):
    """Looks at values, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        return self.last(hidden if hidden.sum() >= 0 else -hidden)  # type: ignore[no-any-return]


def untraceable() -> nn.Module:
    return Untraceable()


def test_a_network_that_cannot_be_shrunk_is_trained_without(tmp_path: Path) -> None:
    settings = make_settings(**SETTINGS, model=f"{__name__}:untraceable", data="digits")
    with pytest.warns(NotShrunkWarning, match=r"cannot be shrunk: .*cannot be recorded.*continues without"):
        result = train(settings, tmp_path)
    assert not result["shrinks"]
    assert result["computed"] == result["prunable"]


@pytest.mark.parametrize("options", [{"method": "lottery"}, {"method": "deep-r"}, {"aim": True}, {"method": "dense"}])
def test_runs_that_need_the_whole_network(options: dict[str, Any], tmp_path: Path) -> None:
    result = train(make_settings(**{**SETTINGS, **options}), tmp_path)
    assert not result["shrinks"]
    assert torch.equal(load_file(tmp_path / "model.safetensors")["1.weight"], load_run(tmp_path)[1].weight)  # type: ignore[index]

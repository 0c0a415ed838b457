"""How much a network changes if one layer alone is pruned."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import flipout

from .networks import Residual, images, perceptron, same, state, vectors


def test_the_change_is_that_of_one_pruned_layer() -> None:
    model = perceptron()
    before = state(model)
    found = flipout.sensitivity(model, vectors(), sparsities=(0.5, 0.9), method="magnitude")
    assert same(model, before)
    x = torch.cat(vectors())
    assert list(found.changes) == ["0.weight", "2.weight", "4.weight"]
    for name, changes in found.changes.items():
        for sparsity, change in zip((0.5, 0.9), changes, strict=True):
            pruned = copy.deepcopy(model)
            flipout.prune(pruned, vectors(), sparsity=sparsity, method="magnitude", include=name)
            with torch.no_grad():
                expected = (pruned(x) - model(x)).square().sum() / model(x).square().sum()
            assert change == pytest.approx(float(expected), rel=1e-4)


def test_the_change_of_a_loss() -> None:
    model = Residual()
    batches = [(x, torch.arange(len(x)) % 5) for x in images()]
    before = state(model)
    found = flipout.sensitivity(model, batches, loss_fn=functional.cross_entropy, sparsities=(0.5,))
    assert same(model, before)
    assert found.of_loss
    assert "loss" in str(found)


def test_limits_are_sparsities_to_prune_with(tmp_path: Path) -> None:
    changes: dict[str, tuple[float, ...]] = {"0.weight": (0.02, 0.1), "2.weight": (0.5, 0.9), "4.weight": (0.0, 0.01)}
    found = flipout.Sensitivity((0.5, 0.9), changes, of_loss=False)
    assert found.limits(0.05) == {"0.weight": pytest.approx(0.65), "2.weight": pytest.approx(0.05), "4.weight": 0.9}
    report = flipout.prune(perceptron(), vectors(), sparsity=found.limits(0.05))
    assert [layer.sparsity for layer in report.layers] == pytest.approx([0.65, 0.05, 0.9], abs=0.02)
    assert "0.weight" in str(found)
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("sparsities", [(), (0.9, 0.5), (0.5, 1.0)])
def test_sparsities_must_rise(sparsities: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="sparsities"):
        flipout.sensitivity(perceptron(), vectors(), sparsities=sparsities)


def test_a_failure_leaves_the_model() -> None:
    model = perceptron()
    before = state(model)
    with pytest.raises(FloatingPointError):
        flipout.sensitivity(model, [*vectors(), torch.full((3, 12), torch.inf)])
    assert same(model, before)

"""What the callbacks share, without any framework."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

import flipout
from flipout.integrations.session import PrunerRecipe, PruningSession, add_penalty
from tests.helpers import batches, cross_entropy, mlp, sgd


@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"flipout.integrations.{package}", raising=False)
    with pytest.raises(ImportError, match=rf"flipout\[{package}\]"):
        importlib.import_module(f"flipout.integrations.{package}")


def test_a_penalty_counts_once_a_step() -> None:
    """As if it were part of the loss, however many batches a step accumulates."""
    gradients = []
    for added in (True, False):
        model = mlp()
        pruner: Any = flipout.HoyerSquare(model, sgd(model), sparsity=0.9, steps=20, lambda_=0.1)
        for x, y in batches(4):
            (cross_entropy(model(x), y) / 4).backward()
        if added:
            add_penalty(pruner)
        else:
            pruner.penalty().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_a_penalty_under_a_gradient_scaler_is_refused() -> None:
    scaler = torch.amp.GradScaler("cpu")
    PrunerRecipe("flipout", None, {"sparsity": 0.9}).refuse_scaler(scaler)
    hoyer = PrunerRecipe("hoyer-square", None, {})
    hoyer.refuse_scaler(None)
    with pytest.raises(ValueError, match="hoyer-square"):
        hoyer.refuse_scaler(scaler)


def test_a_session_that_cannot_load_its_state_leaves_the_model_free() -> None:
    session = PruningSession(PrunerRecipe("flipout", None, {"sparsity": 0.9}))
    session.load({"steps": 20, "total": 20, "released": False, "pruner": {}})
    model = mlp()
    with pytest.raises(ValueError, match="state_dict"):
        session.start(model, sgd(model), lambda: 20, 0)
    flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=10)


@pytest.mark.parametrize("state", [{"a": 1}, {"steps": "many", "total": 1}])
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Prune callback"):
        PruningSession(PrunerRecipe("flipout", None, {"sparsity": 0.9})).load(state)


def test_a_callback_is_imported_when_it_is_asked_for() -> None:
    pytest.importorskip("lightning")
    code = "import sys, flipout; print('lightning' in sys.modules, flipout.integrations.lightning.Prune.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "LightningPrune"]
    with pytest.raises(AttributeError, match="keras"):
        _ = flipout.integrations.keras

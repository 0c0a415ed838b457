"""The clipping of Lightning, of the Trainer of transformers and of Accelerate sees what the network depends on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import flipout
from tests.runtime.clipping import HUGE, close, kept_norm

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import TrainerCallback

from flipout.integrations import lightning, transformers
from tests.integrations import test_accelerate as of_accelerate
from tests.integrations import test_lightning as of_lightning
from tests.integrations import test_transformers as of_transformers

pytestmark = [*of_lightning.pytestmark, *of_transformers.pytestmark]

LIMIT = 0.02
"""Below every norm of these trainings."""


def assert_clipped(pruner: flipout.Pruner | None) -> None:
    assert pruner is not None
    assert close(kept_norm(pruner), LIMIT)


class AfterClipping(TrainerCallback):
    """Looks at the gradients that the Trainer has clipped."""

    def __init__(self, prune: transformers.Prune) -> None:
        self.prune, self.norms = prune, list[float]()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        assert self.prune.pruner is not None
        self.norms.append(kept_norm(self.prune.pruner))


def with_transformers(folder: Path, method: str, max_norm: float, **options: Any) -> tuple[Any, list[float]]:
    prune = transformers.Prune(method, sparsity=0.9)
    looking = AfterClipping(prune)
    training = of_transformers.trainer(folder, prune, looking, max_grad_norm=max_norm, logging_steps=1, **options)
    training.train()
    assert prune.pruner is not None
    assert prune.pruner.nonzero == 32
    return training, looking.norms


@pytest.mark.parametrize("method", ["flipout", "rigl"])
def test_the_trainer_of_transformers(tmp_path: Path, method: str) -> None:
    _, norms = with_transformers(tmp_path, method, LIMIT)
    assert len(norms) == 40
    assert all(close(norm, LIMIT) for norm in norms)
    plain, _ = with_transformers(tmp_path, method, 0.0)  # which switches it off
    huge, norms = with_transformers(tmp_path, method, HUGE)
    assert of_lightning.equal(plain.model, huge.model)
    logged = [entry["grad_norm"] for entry in huge.state.log_history if "grad_norm" in entry]
    assert all(close(norm, expected) for norm, expected in zip(logged, norms, strict=True))


def test_the_limit_of_the_trainer_by_default(tmp_path: Path) -> None:
    """It clips at 1.0 by default, here with accumulation."""
    prune = transformers.Prune("flipout", sparsity=0.9)
    looking = AfterClipping(prune)
    options = {"gradient_accumulation_steps": 2, "learning_rate": 0.1}
    of_transformers.trainer(tmp_path, prune, looking, **options).train()
    assert max(looking.norms) <= 1.0001


class Module(of_lightning.ByStep):
    """Looks at the gradients that Lightning has clipped."""

    def __init__(self, prune: lightning.Prune) -> None:
        super().__init__()
        self.prune, self.norms = prune, list[float]()

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        super().configure_gradient_clipping(*arguments, **options)
        assert self.prune.pruner is not None
        self.norms.append(kept_norm(self.prune.pruner))


def with_lightning(folder: Path, method: str, max_norm: float | None, **options: Any) -> Module:
    prune = lightning.Prune(method, sparsity=0.9)
    module = Module(prune)
    trainer = of_lightning.trainer(folder, prune, gradient_clip_val=max_norm, **options)
    trainer.fit(module, of_lightning.loader())
    assert prune.pruner is not None
    assert prune.pruner.nonzero == of_lightning.KEPT
    return module


@pytest.mark.parametrize("method", ["flipout", "rigl"])
def test_lightning(tmp_path: Path, method: str) -> None:
    clipped = with_lightning(tmp_path, method, LIMIT, max_epochs=1)
    assert len(clipped.norms) == 10
    assert all(close(norm, LIMIT) for norm in clipped.norms)
    plain, huge = (with_lightning(tmp_path, method, limit) for limit in (None, HUGE))
    assert of_lightning.equal(plain, huge)
    by_value = with_lightning(tmp_path, method, HUGE, gradient_clip_algorithm="value")
    assert of_lightning.equal(plain, by_value)


def test_accelerate() -> None:
    accelerator, model, optimizer, loader, pruner = of_accelerate.prepared(accumulation=2)
    for _ in range(5):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    expected = kept_norm(pruner)
                    norm = accelerator.clip_grad_norm_(model.parameters(), LIMIT)
                    assert close(float(norm), expected)
                    assert_clipped(pruner)
                optimizer.step()
                optimizer.zero_grad()
    assert (pruner.step, pruner.nonzero) == (20, 32)

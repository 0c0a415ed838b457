"""Pruning with Hugging Face Accelerate: the prepared optimizer, its accumulation, its checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipout
from tests.helpers import assert_masked

pytest.importorskip("accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from accelerate import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
Y = X[:, :4].argmax(1)


def prepared(
    accumulation: int = 1, method: str = "flipout", **options: Any
) -> tuple[Accelerator, nn.Module, Any, Any, flipout.Pruner]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    given = {"sparsity": 0.9, "steps": 40 // accumulation, **options}
    pruner = flipout.METHODS[method](model, optimizer, **given)
    accelerator.register_for_checkpointing(pruner)
    return accelerator, model, optimizer, loader, pruner


def train(accelerator: Accelerator, model: nn.Module, optimizer: Any, loader: Any, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()


def test_the_prepared_optimizer_is_unwrapped() -> None:
    accelerator, model, optimizer, loader, pruner = prepared()
    assert pruner.optimizer is optimizer.optimizer
    train(accelerator, model, optimizer, loader, 5)
    assert (pruner.step, pruner.nonzero) == (40, 32)
    assert_masked(pruner)


def test_gradient_accumulation_counts_optimizer_steps() -> None:
    accelerator, model, optimizer, loader, pruner = prepared(accumulation=4)
    train(accelerator, model, optimizer, loader, 5)
    assert (pruner.step, pruner.nonzero) == (10, 32)


def test_its_checkpoints_hold_the_pruner(tmp_path: Path) -> None:
    accelerator, model, optimizer, loader, pruner = prepared()
    train(accelerator, model, optimizer, loader, 2)
    accelerator.save_state(str(tmp_path))
    saved = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)  # plain data: nothing to unpickle
    assert saved["step"] == 16
    train(accelerator, model, optimizer, loader, 3)
    again, other, stepping, batches, resumed = prepared()
    again.load_state(str(tmp_path))
    assert (resumed.step, resumed.nonzero) == (16, saved["masks"]["0.weight"].sum() + saved["masks"]["2.weight"].sum())
    train(again, other, stepping, batches, 3)
    assert resumed.events == pruner.events
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("method", ["flipout", "rigl"])
def test_a_training_is_resumed_within_an_epoch(tmp_path: Path, method: str) -> None:
    """After 12 of 40 batches, with accumulation and clipping."""

    def steps(parts: Any, batches: Any) -> None:
        accelerator, model, optimizer, _, _ = parts
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    whole, parts = (prepared(accumulation=2, method=method) for _ in range(2))
    for _ in range(5):
        steps(whole, whole[3])
    steps(parts, parts[3])
    steps(parts, [batch for batch, _ in zip(parts[3], range(4), strict=False)])
    parts[0].save_state(str(tmp_path))
    again = prepared(accumulation=2, method=method)
    again[0].load_state(str(tmp_path))
    assert again[4].step == 6
    steps(again, again[0].skip_first_batches(again[3], 4))
    for _ in range(3):
        steps(again, again[3])
    assert again[4].events == whole[4].events
    assert again[4].finished
    assert all(torch.equal(a, b) for a, b in zip(whole[1].parameters(), again[1].parameters(), strict=True))


class Lookahead:
    """A wrapper that changes weights after the inner step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


def test_a_wrapper_that_changes_weights_is_not_unwrapped() -> None:
    model = nn.Linear(12, 4)
    optimizer: Any = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="Lookahead, a wrapper without step hooks"):
        flipout.FlipOut(model, optimizer, sparsity=0.9, steps=10)

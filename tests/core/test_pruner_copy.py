"""Copies of a pruner: with its model and its optimizer it works, by itself it is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import flipout
from flipout.runtime import attachments
from tests.helpers import assert_masked, make, mlp, run, sgd, train


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
@pytest.mark.parametrize("at", [0, 13])
def test_all_three_together_train_on_to_the_same_bits(method: str, at: int) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer)
    run(model, optimizer, pruner, at)
    copied, its_optimizer, its_pruner = copy.deepcopy((model, optimizer, pruner))
    assert its_pruner.model is copied
    assert its_pruner.optimizer is its_optimizer
    assert all(weight.parameter is copied.get_parameter(weight.name) for weight in its_pruner.weights)
    frozen = [parameter.detach().clone() for parameter in copied.parameters()]

    run(model, optimizer, pruner, 40, skip=at)
    assert its_pruner.step == at
    assert all(torch.equal(a, b) for a, b in zip(frozen, copied.parameters(), strict=True))
    run(copied, its_optimizer, its_pruner, 40, skip=at)
    assert its_pruner.step == pruner.step == 40
    assert its_pruner.events == pruner.events
    assert_masked(its_pruner)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True))
    assert all(torch.equal(pruner.masks[name], its_pruner.masks[name]) for name in pruner.masks)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_copy_of_a_copy_inside_something_else(compiled: bool) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = sgd(self.model)
            self.pruner = flipout.PaperFlipOut(self.model, self.optimizer, sparsity=0.9, steps=20, compile=compiled)

    trainer = Trainer()
    train(trainer.model, trainer.optimizer, 8)
    other = copy.deepcopy(copy.deepcopy(trainer))
    train(other.model, other.optimizer, 20, skip=8)
    assert other.pruner.nonzero == 35
    assert_masked(other.pruner)
    assert trainer.pruner.step == 8


def test_a_copy_is_attached_and_can_be_removed() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    copied, its_optimizer, its_pruner = copy.deepcopy((model, optimizer, pruner))
    with pytest.raises(ValueError, match=r"0\.weight"):
        flipout.GlobalMagnitude(copied, its_optimizer, sparsity=0.9, steps=20)
    assert attachments.find(its_pruner.weights[0].parameter) == (its_pruner, its_pruner.weights[0])
    its_pruner.remove()
    assert not its_optimizer._optimizer_step_pre_hooks
    train(model, optimizer, 20)
    assert pruner.finished
    pruner.remove()
    third, its_optimizer, removed = copy.deepcopy((model, optimizer, pruner))
    assert not its_optimizer._optimizer_step_pre_hooks
    removed.remove()
    flipout.KeepZeros(third, its_optimizer)


@pytest.mark.parametrize(
    "attempt",
    [
        copy.deepcopy,
        copy.copy,
        pickle.dumps,
        lambda pruner: torch.save(pruner, io.BytesIO()),
        lambda pruner: copy.deepcopy((pruner.model, pruner)),
        lambda pruner: copy.deepcopy((pruner.optimizer, pruner)),
        lambda pruner: copy.deepcopy((pruner, pruner.model, pruner.optimizer)),
        lambda pruner: pickle.dumps((pruner.model, pruner.optimizer, pruner)),
    ],
)
def test_by_itself_it_is_refused_with_the_way_out(attempt: Any) -> None:
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.9, steps=20)
    with pytest.raises(TypeError, match=r"state_dict\(\).*deepcopy\(\(model, optimizer, pruner\)\)"):
        attempt(pruner)


def test_a_module_that_holds_its_pruner_is_refused_with_the_reason() -> None:
    model = mlp()
    model.pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.9, steps=20)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="attribute of a module"):
        copy.deepcopy(model)


def test_the_copy_of_a_model_alone_is_the_copy_of_a_model() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20)
    other, its_optimizer = copy.deepcopy((model, optimizer))
    assert pruner.lost_zeros(other) == {}
    train(other, its_optimizer, 2)
    assert pruner.lost_zeros(other)
    assert pruner.step == 20

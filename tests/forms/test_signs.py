"""The form of Deep-R: every connection has a sign that it keeps."""

from __future__ import annotations

import copy

import torch
from torch import nn

import flipout
from tests.helpers import assert_masked, mlp, sgd, train

STEPS = 30


def attached(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    model = mlp(seed)
    optimizer = sgd(model)
    return model, optimizer, flipout.DeepR(model, optimizer, sparsity=0.8, steps=STEPS)


def test_no_connection_has_another_sign_than_its_own() -> None:
    model, optimizer, pruner = attached()
    signs = {weight.name: weight.slots["signs"].clone() for weight in pruner.weights}
    masks = copy.deepcopy(pruner.masks)

    def check() -> None:
        assert_masked(pruner)
        for weight in pruner.weights:
            assert torch.equal(weight.slots["signs"], signs[weight.name])
            assert (weight.local * weight.slots["signs"] >= 0).all()

    train(model, optimizer, STEPS, after=check)
    assert any(not torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())  # some have come and gone


def test_signs_follow_weights_that_are_loaded_before_the_first_step() -> None:
    model, optimizer, pruner = attached()
    other = {name: -tensor for name, tensor in mlp().state_dict().items()}
    before = {weight.name: weight.slots["signs"].clone() for weight in pruner.weights}
    kept = {weight.name: (weight.local != 0) for weight in pruner.weights}
    model.load_state_dict(other)
    train(model, optimizer, 1)
    for weight in pruner.weights:
        alive = kept[weight.name]
        assert torch.equal(weight.slots["signs"][alive], -before[weight.name][alive])


def test_signs_are_saved() -> None:
    model, optimizer, pruner = attached()
    train(model, optimizer, 13)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    train(model, optimizer, STEPS, skip=13)
    again, its_optimizer, its_pruner = attached(seed=1)
    for thing, state in zip((again, its_optimizer, its_pruner), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    train(again, its_optimizer, STEPS, skip=13)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

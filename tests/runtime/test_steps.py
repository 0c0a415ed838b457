"""What a pruner does around a step: noise and masks in the gradients, closures, scalers, accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.random_numbers import normal
from tests.helpers import assert_masked, batches, cross_entropy, mlp, sgd, train


def test_noise_and_masks_reach_the_update() -> None:
    """One step of plain SGD, by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10, noise=0.7, seed=3)
    train(model, optimizer, 5)
    x, y = next(batches(1, seed=4))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    expected = {}
    names = [name for name, _ in model.named_parameters()]
    for name, mask in pruner.masks.items():
        weight = dict(model.named_parameters())[name]
        assert weight.grad is not None
        grad = torch.where(mask, weight.grad, 0.0)
        sigma = grad.norm() / grad.numel() ** 0.5
        noise = 0.7 * sigma * normal(grad.shape, seed=3, step=5, tensor=names.index(name))
        expected[name] = torch.where(mask, weight.detach() - 0.1 * (grad + noise), 0.0)
    optimizer.step()
    for name, updated in expected.items():
        torch.testing.assert_close(model.get_parameter(name).detach(), updated)


def test_noise_is_the_same_for_equal_settings_and_not_torchs() -> None:
    def run(torch_seed: int, **options: Any) -> Tensor:
        model = mlp()
        optimizer = sgd(model)
        flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=20, **options)
        torch.manual_seed(torch_seed)
        train(model, optimizer, 20)
        return model.get_parameter("0.weight").detach()

    assert torch.equal(run(1), run(2))
    assert torch.equal(run(1), run(1, noise=flipout.GradientNoise(1.0, "gradient", seed=0)))
    assert not torch.equal(run(1), run(1, seed=5))
    assert not torch.equal(run(1), run(1, noise=0))
    assert torch.equal(run(1, noise=0), run(1, noise=None))


def test_the_closure_sees_its_own_gradients_pruned_and_noisy() -> None:
    def run(with_closure: bool) -> list[Tensor]:
        model = mlp()
        optimizer = sgd(model)
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=30)
        losses = []
        for number, (x, y) in enumerate(batches(30)):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            if not with_closure:
                closure()
                optimizer.step()
            elif number % 2:
                losses.append(optimizer.step(closure))  # type: ignore[arg-type]  # torch accepts a tensor
            else:
                losses.append(optimizer.step(closure=closure))  # type: ignore[arg-type]
            assert_masked(pruner)
        assert all(isinstance(loss, Tensor) for loss in losses)
        assert pruner.step == 30
        return [parameter.detach() for parameter in model.parameters()]

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("relative_to", ["gradient", "weight"])
def test_a_gradient_scaler_changes_nothing_and_skipped_steps_count_nothing(
    fused: bool, unscale: bool, relative_to: Any
) -> None:
    """A run under a scaler, with two steps that overflow, against the same run without them and it."""

    def run(scaled: bool) -> tuple[flipout.Pruner, nn.Module]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000, backoff_factor=0.5)
        noise = flipout.GradientNoise(0.5, relative_to)

        def criterion(weight: Tensor, flips: Tensor, grad: Tensor) -> Tensor:
            return weight.abs() / (flips + 1) + grad.abs()

        pruner = flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.8, 30), noise=noise)
        for number, (x, y) in enumerate(batches(32)):
            overflow = number in (4, 20)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            if not scaled:
                if not overflow:
                    loss.backward()
                    optimizer.step()
                continue
            if overflow:
                loss = loss * float("inf")
            before = [parameter.detach().clone() for parameter in model.parameters()]
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                if not overflow:
                    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            scaler.step(optimizer)
            scaler.update()
            if overflow:
                assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert_masked(pruner)
        return pruner, model

    with_scaler, scaled_model = run(True)
    without, plain_model = run(False)
    assert with_scaler.step == without.step == 30
    assert with_scaler.nonzero == without.nonzero == 70
    for a, b in zip(scaled_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for name in without.masks:
        torch.testing.assert_close(with_scaler.statistics["grad"][name], without.statistics["grad"][name])
        assert torch.equal(with_scaler.statistics["flips"][name], without.statistics["flips"][name])


def test_accumulation_clipping_and_a_learning_rate_schedule() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    for number, (x, y) in enumerate(batches(80), 1):
        (cross_entropy(model(x), y) / 4).backward()
        if number % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            assert_masked(pruner)
    assert pruner.step == 20
    assert pruner.nonzero == 35


def test_two_pruners_on_one_model_make_different_noise() -> None:
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [weight.detach().clone() for weight in model.parameters()]
    for part in ("0", "1"):
        flipout.PaperFlipOut(model, optimizer, sparsity=0.0, steps=10, include=part)
    for layer in model:
        layer.weight.grad = torch.ones(5, 5)
    optimizer.step()
    first, second = (old - weight.detach() for old, weight in zip(before, model.parameters(), strict=True))
    assert not torch.allclose(first, second)

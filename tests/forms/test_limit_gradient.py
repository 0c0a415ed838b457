"""The gradients that hidden values learn from, against a loop over units and weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import flipout
from flipout.forms.hidden import balance, limit_gradient
from flipout.runtime.compiler import compiled
from flipout.runtime.groups import Gathered

FACTOR, TRUST = torch.tensor(0.5), torch.tensor(0.3)


def limited_slowly(weight: Tensor, grad: Tensor, mask: Tensor, factors: Tensor) -> list[list[float]]:
    rows = []
    tensors = (weight, grad, mask, factors.flatten())
    for unit, row, kept, factor in zip(*(tensor.tolist() for tensor in tensors), strict=True):
        scaled = [g if k else (0.5 * g if math.isfinite(g) else 0.0) for g, k in zip(row, kept, strict=True)]
        size, length = max(math.hypot(*unit), 1e-3), math.hypot(*scaled)
        shorter = min(1.0, 0.3 * size / length) if length else 1.0
        rows.append([g * shorter * factor for g in scaled])
    return rows


@pytest.mark.parametrize("is_compiled", [False, True])
def test_pruned_weights_learn_more_slowly_and_no_unit_moves_too_far(is_compiled: bool) -> None:
    torch.manual_seed(0)
    weight, mask = torch.randn(5, 40) * 0.1, torch.rand(5, 40) < 0.5
    grad = torch.randn(5, 40) * torch.tensor([1e-4, 1e-2, 1.0, 1e3, 0.0]).unsqueeze(1)
    pruned = (~mask).nonzero()
    for place, value in zip(pruned[:3].tolist(), (math.nan, math.inf, -math.inf), strict=True):
        grad[tuple(place)] = value  # the network does not depend on this weight
    units = torch.tensor([1.0, 0.5, 2.0, 0.1, 1.0]).unsqueeze(1)
    expected = torch.tensor(limited_slowly(weight, grad, mask, units))

    run = compiled(limit_gradient, "of the test") if is_compiled else limit_gradient
    run(weight, grad, mask.to(torch.uint8), FACTOR, FACTOR, TRUST, units)

    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-8)


def test_a_gradient_of_a_kept_weight_that_is_not_finite_stays_visible() -> None:
    weight, grad, mask = torch.ones(1, 3), torch.tensor([[math.nan, 1.0, 1.0]]), torch.tensor([[1, 1, 0]])

    limit_gradient(weight, grad, mask.to(torch.uint8), FACTOR, FACTOR, TRUST, torch.tensor(1.0))

    assert grad.isnan().any()


@pytest.mark.parametrize("gathered", [False, True])
def test_balanced_gradients_are_those_of_units_over_their_layer(gathered: bool) -> None:
    """The small layers of a network are worked on together; the factors are those of each unit by itself."""
    torch.manual_seed(0)
    size = 8 if gathered else 20_000
    model = torch.nn.Sequential(torch.nn.Linear(size, 6), torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.7, steps=40, compile=False)
    for _ in range(12):
        model(torch.randn(4, size)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any(isinstance(group, Gathered) for group in pruner.work.groups) == gathered
    for group in pruner.work.groups:
        seen = balance(group, {6}).expand_as(group.values).flatten().tolist()

        wanted: list[float] = []
        for weight in group.weights:
            for row in weight.mask:
                density = float(row.float().mean()) / float(weight.mask.float().mean())
                wanted += [math.sqrt(density) if len(weight.mask) == 6 else 1.0] * row.numel()
            if gathered:
                rest = -len(wanted) % group.values.shape[1]
                wanted += [0.0 if len(weight.mask) == 6 else 1.0] * rest  # rows are filled up
        assert seen == pytest.approx(wanted, rel=1e-5)


def test_a_layer_without_weights_keeps_its_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    pruner = flipout.FlipOut(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5, steps=40, compile=False)
    (first, *_) = pruner.work.groups
    for weight in first.weights:
        weight.mask.zero_()
        weight.kept = 0

    assert balance(first, {2, 4}).eq(1).all()

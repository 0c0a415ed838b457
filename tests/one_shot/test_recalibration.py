"""Statistics of batch norm, estimated again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout

from .networks import Residual, images, perceptron, same, state


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.integers(0, 10**6), st.floats(-100, 100))
@settings(max_examples=25, deadline=None)
def test_statistics_are_those_of_all_batches_together(sizes: list[int], seed: int, shift: float) -> None:
    random = torch.Generator().manual_seed(seed)
    batches = [torch.randn(size, 3, 4, generator=random) * (i + 1) + shift for i, size in enumerate(sizes)]
    norm = nn.BatchNorm1d(3)
    flipout.recalibrate(nn.Sequential(norm), batches)
    together = torch.cat(batches).double().transpose(0, 1).flatten(1)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, together.mean(1).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.running_var, together.var(1).float(), rtol=1e-4, atol=1e-5)


def test_a_deeper_norm_sees_what_norms_of_the_batch_give() -> None:
    model, expected = Residual(), Residual()
    batches = images(1)
    flipout.recalibrate(model, batches)
    expected.dropout.p = 0.0
    for module in expected.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    expected.train()(batches[0])
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-5, atol=1e-5)


def test_modes_gradients_and_random_numbers_are_left_alone() -> None:
    model = Residual()
    model.norm2.eval()
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    flipout.recalibrate(model, ((x, torch.zeros(len(x))) for x in images()))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_network_without_batch_norm_is_left_alone() -> None:
    model = perceptron()
    before = state(model)
    assert flipout.recalibrate(model, []) is model
    assert same(model, before)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "batches"),
        ([torch.zeros(2, 4, 9, 9)], ValueError, "batch 1"),
        ([torch.full((2, 3, 9, 9), torch.nan)], FloatingPointError, "norm1"),
    ],
)
def test_nothing_is_changed_if_it_fails(batches: list[Tensor], error: type[Exception], message: str) -> None:
    model = Residual()
    before = state(model)
    with pytest.raises(error, match=message):
        flipout.recalibrate(model, [*images(1), *batches] if batches else [])
    assert same(model, before)

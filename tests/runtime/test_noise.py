"""Gradient noise: Equation 3, and compiled against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.random_numbers import key, normal
from flipout.runtime.compiler import compiled
from flipout.runtime.groups import Alone
from flipout.runtime.kernels import Kernels
from flipout.runtime.noise import GradientNoise, deviations, perturb, perturb_by
from flipout.views import Positions
from flipout.weights import Weight

SHAPES = st.tuples(st.integers(2, 40), st.integers(2, 150)) | st.just((3, 5000))
Way = Callable[..., Any]


def perturbed(
    run: Way,
    weight: Tensor,
    grad: Tensor,
    mask: Tensor,
    scale: float = 1.0,
    relative_to: str = "gradient",
    pruned: str = "masked",
) -> Tensor:
    where = Positions.all_of(weight.shape)
    grad = grad.clone()
    numbers = where.starts().unsqueeze(1), where.offsets()
    run(weight, grad, mask, *numbers, *key("normal", 1, 2, 3), torch.tensor(scale), relative_to, pruned)
    return grad


@pytest.mark.parametrize("relative_to", ["gradient", "weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_noise_is_equation_3(relative_to: str, dtype: torch.dtype) -> None:
    weight, grad = torch.randn(40, 30, dtype=torch.float64), torch.randn(40, 30, dtype=torch.float64)
    mask = (torch.rand(40, 30) < 0.4).to(torch.uint8)
    result = perturbed(perturb, weight.to(dtype), grad.to(dtype), mask, 0.5, relative_to)
    sigma = (((grad if relative_to == "gradient" else weight) * mask).square().sum() / 1200).sqrt()
    expected = (grad + 0.5 * sigma * normal(torch.Size([40, 30]), seed=1, step=2, tensor=3)) * mask
    torch.testing.assert_close(result, expected.to(dtype), rtol=2e-3, atol=2e-3 if dtype == torch.float16 else 1e-5)


@pytest.mark.parametrize("run", [perturb, compiled(perturb, "with hidden values")])
def test_hidden_values_keep_their_gradient_without_noise(run: Way) -> None:
    weight, grad = torch.randn(40, 30), torch.randn(40, 30)
    mask = (torch.rand(40, 30) < 0.4).to(torch.uint8)
    result = perturbed(run, weight, grad, mask, pruned="hidden")
    assert torch.equal(result[mask == 0], grad[mask == 0])
    torch.testing.assert_close(result * mask, perturbed(perturb, weight, grad, mask))


def test_the_norm_of_a_half_precision_gradient_does_not_overflow() -> None:
    weight = nn.Parameter(torch.zeros(1, 1000, dtype=torch.float16))
    grad = torch.full((1, 1000), 6e4, dtype=torch.float16)
    sigma = deviations(GradientNoise(), Kernels(False), Alone(Weight("weight", nn.Module(), weight)), grad)
    assert sigma.tolist() == pytest.approx([6e4], rel=1e-3)


def test_rows_of_a_gradient_get_the_noise_they_have_in_the_whole() -> None:
    grad, mask, where = torch.zeros(10, 7), torch.ones(10, 7, dtype=torch.uint8), Positions.all_of(torch.Size([10, 7]))
    hashed, sigma, starts = key("normal", 0, 0, 0), torch.tensor(1.0), where.starts().unsqueeze(1)
    for rows in (slice(0, 6), slice(6, 10)):
        perturb_by(grad[rows], mask[rows], starts[rows], where.offsets(), *hashed, sigma, "masked")
    assert torch.equal(grad, normal(torch.Size([10, 7]), seed=0, step=0, tensor=0))


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([0.1, 1.0, 3.0]))
@example((1, 64), 0, 0.5, 1.0)
def test_compiled_noise_is_the_same_to_rounding(shape: tuple[int, int], seed: int, kept: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, grad = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    mask = (torch.rand(shape, generator=generator) < kept).to(torch.uint8)
    fast = perturbed(compiled(perturb), weight, grad, mask, scale)
    slow = perturbed(perturb, weight, grad, mask, scale)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert torch.equal(fast == 0, slow == 0)

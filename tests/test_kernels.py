"""The work around a step: against slow recounts, and compiled against uncompiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout import kernels
from flipout.noise import key, normal
from flipout.runtime.compiler import compiled

VALUES = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 0.3, -2.0, math.inf, -math.inf]
SHAPES = st.tuples(st.integers(2, 40), st.integers(2, 150)) | st.just((3, 5000))
Way = Callable[..., Any]


def planes(shape: tuple[int, ...], count: int = 0) -> tuple[Tensor, Tensor]:
    return torch.full(shape, count & 255, dtype=torch.uint8), torch.full(shape, count >> 8, dtype=torch.uint8)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from(VALUES), min_size=n, max_size=n), min_size=1, max_size=12)
    )
)
def test_flips_against_a_recount(history: list[list[float]]) -> None:
    weight = torch.tensor(history[0])
    low, high = planes(weight.shape)
    kernels.note_signs(weight, high)
    for values in history[1:]:
        kernels.count_flips(torch.tensor(values), torch.ones_like(low), low, high)
    signs = np.sign(np.array(history))
    assert kernels.read_flips(low, high).tolist() == (signs[1:] != signs[:-1]).sum(0).tolist()


@pytest.mark.parametrize("count", [0, 254, 255, 256, 511, 16_381, 16_382])
def test_counts_carry_over_and_stop_at_their_limit(count: int) -> None:
    low, high = planes((3,), count)
    mask = torch.tensor([1, 1, 0], dtype=torch.uint8)
    kernels.note_signs(torch.tensor([1.0, 1.0, 1.0]), high)
    for turn in (-1.0, 1.0, -1.0):
        kernels.count_flips(torch.tensor([turn, 1.0, turn]), mask, low, high)
    assert kernels.LIMIT == 16_383
    assert kernels.read_flips(low, high).tolist() == [min(count + 3, 16_383), count, count]


def test_a_step_zeroes_what_is_pruned_whatever_is_there() -> None:
    weight = torch.tensor([math.nan, math.inf, -math.inf, 5.0, -3.0])
    mask = torch.tensor([0, 0, 0, 0, 1], dtype=torch.uint8)
    kernels.count_flips(weight, mask, *planes(weight.shape))
    assert weight.tolist() == [0, 0, 0, 0, -3.0]
    assert not torch.signbit(weight[:4]).any()


def perturbed(
    run: Way, weight: Tensor, grad: Tensor, mask: Tensor, scale: float = 1.0, relative_to: str = "gradient"
) -> Tensor:
    offsets = torch.arange(weight.shape[1], dtype=torch.int32)
    grad = grad.clone()
    run(weight, grad, mask, offsets, *key("normal", 1, 2, 3), torch.tensor(scale), relative_to)
    return grad


@pytest.mark.parametrize("relative_to", ["gradient", "weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_noise_is_equation_3(relative_to: str, dtype: torch.dtype) -> None:
    weight, grad = torch.randn(40, 30, dtype=torch.float64), torch.randn(40, 30, dtype=torch.float64)
    mask = (torch.rand(40, 30) < 0.4).to(torch.uint8)
    result = perturbed(kernels.perturb, weight.to(dtype), grad.to(dtype), mask, 0.5, relative_to)
    sigma = ((grad * mask if relative_to == "gradient" else weight).square().sum() / 1200).sqrt()
    expected = (grad + 0.5 * sigma * normal(torch.Size([40, 30]), seed=1, step=2, tensor=3)) * mask
    torch.testing.assert_close(result, expected.to(dtype), rtol=2e-3, atol=2e-3 if dtype == torch.float16 else 1e-5)


def test_the_norm_of_a_half_precision_gradient_does_not_overflow() -> None:
    grad = torch.full((1, 1000), 6e4, dtype=torch.float16)
    sigma = kernels.deviation(grad, grad, torch.ones_like(grad, dtype=torch.uint8), "gradient")
    assert float(sigma) == pytest.approx(6e4, rel=1e-3)


def test_rows_of_a_gradient_get_the_noise_they_have_in_the_whole() -> None:
    grad, mask, offsets = torch.zeros(10, 7), torch.ones(10, 7, dtype=torch.uint8), torch.arange(7, dtype=torch.int32)
    hashed, sigma = key("normal", 0, 0, 0), torch.tensor(1.0)
    kernels.add_noise(grad[:6], mask[:6], offsets, *hashed, sigma)
    kernels.add_noise(grad[6:], mask[6:], offsets, *hashed, sigma, 6)
    assert torch.equal(grad, normal(torch.Size([10, 7]), seed=0, step=0, tensor=0))


# Compiled: the eager functions are the reference.


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([0.1, 1.0, 3.0]))
@example((1, 64), 0, 0.5, 1.0)
def test_compiled_noise_is_the_same_to_rounding(shape: tuple[int, int], seed: int, kept: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, grad = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    mask = (torch.rand(shape, generator=generator) < kept).to(torch.uint8)
    fast = perturbed(compiled(kernels.perturb), weight, grad, mask, scale)
    slow = perturbed(kernels.perturb, weight, grad, mask, scale)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert torch.equal(fast == 0, slow == 0)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.floats(0, 1))
def test_compiled_counts_and_masks_are_the_same(shape: tuple[int, int], seed: int, kept: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(len(VALUES), shape, generator=generator)
    mask = (torch.rand(shape, generator=generator) < kept).to(torch.uint8)
    low = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    high = torch.randint(3, shape, generator=generator, dtype=torch.uint8) << 6
    high += torch.randint(64, shape, generator=generator, dtype=torch.uint8)
    results = []
    for run in (compiled(kernels.count_flips), kernels.count_flips):
        tensors = [torch.tensor(VALUES)[choice], mask, low.clone(), high.clone()]
        run(*tensors)
        results.append(tensors)
    for fast, slow in zip(*results, strict=True):
        assert torch.equal(fast, slow)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.sampled_from([1.0, 2.0]))
def test_compiled_scores_are_the_same_bit_for_bit(shape: tuple[int, int], seed: int, p: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator)
    low, high = (torch.randint(256, shape, generator=generator, dtype=torch.uint8) for _ in range(2))
    fast = compiled(kernels.saliency)(weight, low, high, str(p))
    assert torch.equal(fast, kernels.saliency(weight, low, high, str(p)))

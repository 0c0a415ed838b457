"""The numbers behave as random ones do, and are a pure function of where they stand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from flipout import GradientNoise
from flipout.noise import normal, uniform

N = 200_000
SHAPE = torch.Size([N])


def draw(seed: int = 0, step: int = 0, tensor: int = 0, n: int = N) -> np.ndarray:
    return normal(torch.Size([n]), seed=seed, step=step, tensor=tensor).double().numpy()


@pytest.mark.parametrize("seed", [0, 1, -5, 2**80])
@pytest.mark.parametrize("step", [0, 1, 123_456])
def test_normal_numbers_have_a_normal_distribution(seed: int, step: int) -> None:
    z = draw(seed, step)
    assert abs(z.mean()) < 5 / math.sqrt(N)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / N)
    assert abs(stats.skew(z)) < 5 * math.sqrt(6 / N)
    assert abs(stats.kurtosis(z)) < 5 * math.sqrt(24 / N)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert np.abs(z).max() > 4  # the tails are there


@pytest.mark.parametrize("step", [0, 7])
def test_uniform_numbers_have_a_uniform_distribution(step: int) -> None:
    u = uniform(SHAPE, seed=0, step=step, tensor=0).double().numpy()
    assert 0 < u.min() <= u.max() <= 1
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    histogram = np.bincount((u * 256).astype(int).clip(0, 255), minlength=256)
    assert stats.chisquare(histogram).pvalue > 1e-4


def independent(a: np.ndarray, b: np.ndarray) -> None:
    """No linear correlation, of the numbers nor of their sizes, and a flat joint distribution of their ranks."""
    bound = 5 / math.sqrt(len(a))
    assert abs(np.corrcoef(a, b)[0, 1]) < bound
    assert abs(np.corrcoef(a**2, b**2)[0, 1]) < bound
    joint, *_ = np.histogram2d(stats.norm.cdf(a), stats.norm.cdf(b), bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(joint.ravel()).pvalue > 1e-5


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"step": 0}, {"step": 1}),
        ({"step": 1000}, {"step": 1001}),
        ({"tensor": 0}, {"tensor": 1}),
        ({"seed": 0}, {"seed": 1}),
        ({"seed": 0, "step": 1}, {"seed": 1, "step": 0}),
        ({"step": 0, "tensor": 1}, {"step": 1, "tensor": 0}),
    ],
)
def test_independent_across_steps_tensors_and_seeds(here: dict[str, int], there: dict[str, int]) -> None:
    independent(draw(**here), draw(**there))


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 16, 64, 256, 1024, 65536, N // 2])
def test_independent_of_neighbours(lag: int) -> None:
    z = draw()
    independent(z[:-lag], z[lag:])


def test_no_step_is_a_shifted_copy_of_another() -> None:
    seen: dict[float, int] = {}
    for step in range(200):
        for value in draw(step=step, n=64)[:4]:
            seen[value] = seen.get(value, 0) + 1
    assert max(seen.values()) <= 2  # 800 numbers of 24 bits each


def test_one_bit_of_the_index_turns_over_half_of_the_result() -> None:
    bits = (uniform(torch.Size([1 << 16]), seed=0, step=0, tensor=0).double() * 2**24 - 1).long().numpy()
    for bit in range(16):
        index = np.arange(1 << 16)
        flipped = bits ^ bits[index ^ (1 << bit)]
        shares = [((flipped >> place) & 1).mean() for place in range(24)]
        assert all(abs(share - 0.5) < 0.015 for share in shares), bit


def test_torchs_own_random_state_is_not_touched() -> None:
    before = torch.get_rng_state()
    normal(SHAPE, seed=0, step=0, tensor=0)
    uniform(SHAPE, seed=0, step=0, tensor=0)
    assert torch.equal(before, torch.get_rng_state())


@given(st.lists(st.integers(0, 7), max_size=4).map(tuple), st.integers(), st.integers(0, 10**6), st.integers(0, 100))
def test_a_pure_function_of_seed_step_tensor_and_element(
    shape: tuple[int, ...], seed: int, step: int, tensor: int
) -> None:
    def once() -> Tensor:
        return normal(torch.Size(shape), seed=seed, step=step, tensor=tensor)

    assert torch.equal(once(), once())
    assert once().shape == shape
    flat = normal(torch.Size([torch.Size(shape).numel()]), seed=seed, step=step, tensor=tensor)
    assert torch.equal(once().flatten(), flat)


def box_muller(n: int, i: int) -> float:
    """One element by the definition, in Python integers."""
    from flipout.noise import _keys

    def mix(x: int) -> int:
        x &= 0xFFFFFFFF
        x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ x >> 16

    start, first, second = (key & 0xFFFFFFFF for key in _keys("normal", 3, 5, 7))
    half = (n + 1) // 2
    mixed = mix(i % half + start)
    u, v = (((mix(mixed ^ key) >> 8) + 1) / 2**24 for key in (first, second))
    radius, angle = math.sqrt(-2 * math.log(u)), 2 * math.pi * v
    return radius * (math.cos(angle) if i < half else math.sin(angle))


@pytest.mark.parametrize("n", [1, 2, 9, 100])
def test_each_element_against_its_definition(n: int) -> None:
    z = normal(torch.Size([n]), seed=3, step=5, tensor=7)
    assert z.tolist() == pytest.approx([box_muller(n, i) for i in range(n)], abs=2e-5)


def test_noise_relative_to_the_gradient() -> None:
    weight, grad = torch.randn(40, 30), torch.randn(40, 30)
    noise = GradientNoise(0.5, seed=2).sample(weight, grad, step=3, tensor=1)
    sigma = math.sqrt(float((grad.double() ** 2).sum()) / 1200)
    torch.testing.assert_close(noise, 0.5 * sigma * normal(weight.shape, seed=2, step=3, tensor=1))


def test_noise_relative_to_the_weight_is_equation_3() -> None:
    weight, grad = torch.randn(40, 30), torch.randn(40, 30)
    noise = GradientNoise(2.0, relative_to="weight").sample(weight, grad, step=0, tensor=0)
    sigma = math.sqrt(float((weight.double() ** 2).sum()) / 1200)
    torch.testing.assert_close(noise, 2.0 * sigma * normal(weight.shape, seed=0, step=0, tensor=0))


def test_the_norm_of_a_half_precision_gradient_does_not_overflow() -> None:
    grad = torch.full((1000,), 6e4, dtype=torch.float16)
    assert float(GradientNoise().sigma(grad, grad)) == pytest.approx(6e4, rel=1e-3)


@pytest.mark.parametrize("scale", [-1.0, math.inf, math.nan])
def test_a_scale_that_cannot_be(scale: float) -> None:
    with pytest.raises(ValueError, match="noise scale"):
        GradientNoise(scale)


def test_what_noise_can_be_relative_to() -> None:
    with pytest.raises(ValueError, match="'gradient' or 'weight'"):
        GradientNoise(relative_to="loss")  # type: ignore[arg-type]

"""The numbers behave as random ones do, and are a pure function of where they stand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats
from torch import Tensor

from flipout import GradientNoise
from flipout.random_numbers import key, normal, uniform

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
    first = uniform(SHAPE, seed=0, step=0, tensor=0).numpy()
    for step in range(1, 100):
        other = uniform(torch.Size([1000]), seed=0, step=step, tensor=0).numpy()
        shared = np.isin(first, other).sum()  # by chance, 200,000 * 1,000 / 2^24 = 12 of them
        assert shared < 12 + 5 * math.sqrt(12), step


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


def by_definition(i: int) -> float:
    """One element in Python integers: the normal quantile of the share of sums of four uniforms that are below its own.

    That is what the polynomial stands for, and it does so to 2e-3 of the value up to 4 deviations.
    """
    factor, offset = key("normal", 3, 5, 7)
    x = (i * factor + offset) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ x >> 16
    wide = (x >> 18) - (1 << 14 if x >> 31 else 0)
    return float(QUANTILES[wide + 8192 + sum((x >> shift & 63) << 8 for shift in (0, 6, 12))])


def quantiles() -> np.ndarray:
    """For each sum of one number of 14 bits and three of 6, scaled alike: the normal quantile of the middle of its
    step in the distribution."""
    shares = np.full(1 << 14, 2.0**-14)
    coarse = np.zeros((63 << 8) + 1)
    coarse[:: 1 << 8] = 2.0**-6
    for _ in range(3):
        shares = signal.fftconvolve(shares, coarse)
    below = np.cumsum(shares) - shares / 2
    return stats.norm.ppf(below.clip(1e-12, 1 - 1e-12))  # type: ignore[no-any-return]


QUANTILES = quantiles()


@pytest.mark.parametrize("shape", [(1,), (9,), (3, 4, 5), (100, 200)])
def test_each_element_against_its_definition(shape: tuple[int, ...]) -> None:
    z = normal(torch.Size(shape), seed=3, step=5, tensor=7).flatten().tolist()
    expected = [by_definition(i) for i in range(len(z))]
    assert z == pytest.approx(expected, rel=5e-3, abs=2e-4)
    assert np.abs(stats.norm.cdf(z) - stats.norm.cdf(expected)).max() < 1e-4  # Kolmogorov's distance


def test_the_whole_distribution_at_once() -> None:
    """Two million numbers, enough to see an error of a thousandth anywhere in the distribution."""
    z = draw(n=2_000_000)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / len(z))
    assert abs(stats.kurtosis(z)) < 4 * math.sqrt(24 / len(z))
    for bound in (3.0, 3.5, 4.0, 4.5):
        expected = 2 * stats.norm.sf(bound) * len(z)
        assert abs((np.abs(z) > bound).sum() - expected) < 4 * math.sqrt(expected) + 1, bound


@pytest.mark.parametrize("scale", [-1.0, math.inf, math.nan])
def test_a_scale_that_cannot_be(scale: float) -> None:
    with pytest.raises(ValueError, match="noise scale"):
        GradientNoise(scale)


def test_what_noise_can_be_relative_to() -> None:
    with pytest.raises(ValueError, match="'gradient' or 'weight'"):
        GradientNoise(relative_to="loss")  # type: ignore[arg-type]

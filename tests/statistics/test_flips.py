"""Sign flips: the kernel against a recount, and compiled against eager."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.criteria import flip_saliency
from flipout.forms.form import _fused
from flipout.numerics import zero_pruned
from flipout.runtime.compiler import compiled
from flipout.runtime.kernels import _score_kernel
from flipout.statistics import Value
from flipout.statistics.flips import LIMIT, Flips, count_of, note_signs

VALUES = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 0.3, -2.0, math.inf, -math.inf]
SHAPES = st.tuples(st.integers(2, 40), st.integers(2, 150)) | st.just((3, 5000))
SETTLE = _fused(((Flips.kernel, 2),), zero_pruned, 0, False)


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
    note_signs(weight, high)
    for values in history[1:]:
        Flips.kernel(torch.tensor(values), torch.ones_like(low), low, high)
    signs = np.sign(np.array(history))
    assert count_of(low, high).tolist() == (signs[1:] != signs[:-1]).sum(0).tolist()


@pytest.mark.parametrize("count", [0, 254, 255, 256, 511, 16_381, 16_382])
def test_counts_carry_over_and_stop_at_their_limit(count: int) -> None:
    low, high = planes((3,), count)
    mask = torch.tensor([1, 1, 0], dtype=torch.uint8)
    note_signs(torch.tensor([1.0, 1.0, 1.0]), high)
    for turn in (-1.0, 1.0, -1.0):
        Flips.kernel(torch.tensor([turn, 1.0, turn]), mask, low, high)
    assert LIMIT == 16_383
    assert count_of(low, high).tolist() == [min(count + 3, 16_383), count, count]


def test_a_step_zeroes_what_is_pruned_whatever_is_there() -> None:
    weight = torch.tensor([math.nan, math.inf, -math.inf, 5.0, -3.0])
    mask = torch.tensor([0, 0, 0, 0, 1], dtype=torch.uint8)
    SETTLE(weight, mask, *planes(weight.shape))
    assert weight.tolist() == [0, 0, 0, 0, -3.0]
    assert not torch.signbit(weight[:4]).any()


# Compiled: the eager functions are the reference.


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
    for run in (compiled(SETTLE), SETTLE):
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
    score = _score_kernel(
        flip_saliency, (("weight", Value.reader, 0), ("flips", Flips.reader, 2)), (("p", "float", repr(p)),)
    )
    fast = compiled(score)(weight, low, high)
    assert torch.equal(fast, flip_saliency(weight, count_of(low, high), p=p))

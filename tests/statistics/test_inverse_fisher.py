"""The inverse Fisher and the compensation of Optimal Brain Surgeon against slow and obvious versions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.statistics import InverseFisher, Place
from flipout.statistics import inverse_fisher as module
from flipout.statistics.inverse_fisher import compensation, fisher_blocks, inverse_diagonal

SEEDS, SIZES, BLOCKS = st.integers(0, 10_000), st.integers(1, 23), st.integers(1, 9)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def woodfisher(gradients: Tensor, damping: float) -> Tensor:
    """The inverse of one block by a rank-one update for each gradient (Singh and Alistarh, Eq. 3)."""
    number, size = gradients.shape
    inverse = torch.eye(size, dtype=gradients.dtype) / damping
    for g in gradients:
        inverse = inverse - torch.outer(inverse @ g, g @ inverse) / (number + g @ inverse @ g)
    return inverse


def one_by_one(fisher: Tensor, weight: Tensor, gone: list[int]) -> Tensor:
    """Optimal Brain Surgeon, weight by weight; each time the inverse is that of the weights that are left."""
    weight, left = weight.clone(), list(range(len(weight)))
    for q in gone:
        inverse = torch.linalg.inv(fisher[left][:, left])
        place = left.index(q)
        weight[left] = weight[left] - weight[q] / inverse[place, place] * inverse[:, place]
        weight[q] = 0
        left.remove(q)
    return weight


@settings(deadline=None)
@given(SEEDS, SIZES, BLOCKS, st.integers(1, 12), st.booleans())
def test_the_inverse_is_that_of_rank_one_updates(seed: int, size: int, block: int, number: int, split: bool) -> None:
    gradients, relative = drawn(seed, number, size), 0.1
    damping = relative * float(gradients.square().mean())
    expected = [woodfisher(part, damping).diagonal() for part in gradients.split(block, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", 1 if split else 1 << 22)
        torch.testing.assert_close(inverse_diagonal(gradients, block, relative), torch.cat(expected))


@settings(deadline=None)
@given(SEEDS, SIZES, BLOCKS, st.booleans())
def test_the_compensation_is_that_of_pruning_one_by_one(seed: int, size: int, block: int, split: bool) -> None:
    gradients, weight = drawn(seed, 10, size), drawn(seed + 1, size)
    kept = drawn(seed + 2, size) > 0
    expected = []
    fishers = [matrix for _, matrices in fisher_blocks(gradients, block, 0.1) for matrix in matrices]
    for fisher, part, stays in zip(fishers, weight.split(block), kept.split(block), strict=True):
        gone = (~stays).nonzero().flatten().tolist()
        expected.append(one_by_one(fisher[: len(part), : len(part)], part, gone))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", 1 if split else 1 << 22)
        change = compensation(gradients, weight, kept, block, 0.1)
    torch.testing.assert_close(torch.where(kept, weight, 0) + change, torch.cat(expected))


def test_neither_the_number_of_examples_in_a_gradient_nor_the_scale_of_the_loss_matters() -> None:
    """A mean over `m` examples has a Fisher of `1 / m` of the size: sums divided by the number of batches are wrong by
    that factor, unless the damping follows."""
    gradients, weight, kept = drawn(0, 10, 12), drawn(1, 12), drawn(2, 12) > 0
    for scale in (1 / 8, 1e-4, 100.0):
        ratio = inverse_diagonal(gradients * scale, 5, 0.01) / inverse_diagonal(gradients, 5, 0.01)
        torch.testing.assert_close(ratio, torch.full_like(ratio, scale**-2))
        change = compensation(gradients * scale, weight, kept, 5, 0.01)
        torch.testing.assert_close(change, compensation(gradients, weight, kept, 5, 0.01))
    twice = torch.cat([gradients, gradients])  # the same examples once more
    torch.testing.assert_close(inverse_diagonal(twice, 5, 0.01), inverse_diagonal(gradients, 5, 0.01))


def test_only_the_latest_gradients_count_and_those_of_pruned_weights_do_not() -> None:
    weight = drawn(0, 2, 3).float()
    statistic = InverseFisher(weight, Place(), gradients=4, block=3, damping=0.1)
    assert statistic.value(weight, 0).isfinite().all()  # before the first step
    seen = [drawn(step, 2, 3).float() for step in range(7)]
    for grad in seen:
        statistic.before(weight, grad)
    statistic.before(weight, None)
    expected = inverse_diagonal(torch.stack(seen[3:]).flatten(1), 3, 0.1).view(2, 3)
    torch.testing.assert_close(statistic.value(weight, 0), expected)
    weight[0, 1] = 0
    masked = [grad * (weight != 0) for grad in seen[3:]]
    torch.testing.assert_close(
        statistic.value(weight, 0), inverse_diagonal(torch.stack(masked).flatten(1), 3, 0.1).view(2, 3)
    )
    change = statistic.compensation(weight, weight != 0)
    assert not change.any()

"""Optimal Brain Surgeon, against versions that are slow and obvious."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.one_shot import solvers

Seeds = st.integers(0, 10**6)


def problem(seed: int, outputs: int, inputs: int, groups: int = 1) -> tuple[Tensor, Tensor]:
    """A weight, and the damped Hessian of correlated inputs."""
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(groups, inputs, inputs, generator=random, dtype=torch.float64)
    x = mixed @ torch.randn(groups, inputs, 4 * inputs, generator=random, dtype=torch.float64)
    weight = torch.randn(groups, outputs, inputs, generator=random, dtype=torch.float64)
    return weight, solvers.damped(2 / x.shape[-1] * x @ x.mT)


def prune(weight: Tensor, hessian: Tensor, choose: solvers.Choose, every: int = solvers.BLOCK) -> tuple[Tensor, Tensor]:
    """The weight after `prune_columns`, and what is pruned of it."""
    found = weight.clone()
    return found, solvers.prune_columns(found, solvers.InverseRoot(hessian.clone(), 0.0).factor, choose, every)


def least_squares(weight: Tensor, hessian: Tensor, mask: Tensor) -> Tensor:
    """The best weights of one output among those that the mask keeps."""
    kept = mask.nonzero().squeeze(1)
    result = torch.zeros_like(weight)
    if len(kept):
        result[kept] = torch.linalg.solve(hessian[kept][:, kept], hessian[kept] @ weight)
    return result


def surgeon(weight: Tensor, hessian: Tensor, pruned: list[int]) -> Tensor:
    """Hassibi & Stork's update, one weight of one output at a time, with the exact inverse of what is left."""
    weight, left = weight.clone(), list(range(len(weight)))
    for index in pruned:
        inverse = torch.linalg.inv(hessian[left][:, left])
        place = left.index(index)
        weight[left] -= weight[index] / inverse[place, place] * inverse[:, place]
        weight[index] = 0
        left.remove(index)
    return weight


@given(Seeds, st.integers(1, 4), st.integers(1, 9), st.integers(1, 2), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_a_mask_is_pruned_as_by_one_weight_at_a_time(
    seed: int, outputs: int, inputs: int, groups: int, share: float
) -> None:
    """An input, once visited, is not changed any more: the surgeon visits the inputs in the same order."""
    weight, hessian = problem(seed, outputs, inputs, groups)
    marks = torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < share
    found, pruned = prune(weight, hessian, solvers.exactly(marks))
    assert torch.equal(pruned, marks)
    for group in range(groups):
        for row in range(outputs):
            expected = weight[group, row].clone()
            for i in range(inputs):  # the inputs before i are fixed: only those from i on can be changed
                if marks[group, row, i]:
                    expected[i:] = surgeon(expected[i:], hessian[group][i:, i:], [0])
            torch.testing.assert_close(found[group, row], expected, rtol=1e-6, atol=1e-8)


@given(Seeds, st.integers(2, 9), st.floats(0.1, 0.9))
@settings(max_examples=20, deadline=None)
def test_removing_inputs_of_all_outputs_is_least_squares(seed: int, inputs: int, share: float) -> None:
    weight, hessian = problem(seed, 3, inputs, 2)
    kept = torch.rand(2, inputs, generator=torch.Generator().manual_seed(seed)) < share
    found = solvers.remove_inputs(weight, hessian, kept)
    for group in range(2):
        for row in range(3):
            expected = least_squares(weight[group, row], hessian[group], kept[group])
            torch.testing.assert_close(found[group, row], expected, rtol=1e-6, atol=1e-8)
    assert not found.masked_select(~kept[:, None].expand_as(found)).any()


@given(Seeds, st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_the_saliency_is_twice_the_error_of_a_removed_weight(seed: int, inputs: int) -> None:
    weight, hessian = problem(seed, 1, inputs)
    found = solvers.saliency(weight, solvers.InverseRoot(hessian.clone(), 0.0).inverse_diagonal())
    for i in range(inputs):
        mask = torch.arange(inputs) != i
        change = weight[0, 0] - least_squares(weight[0, 0], hessian[0], mask)
        torch.testing.assert_close(
            found[0, 0, i] / 2, torch.tensor(solvers.squared_error(change[None, None], hessian), dtype=torch.float64)
        )


def test_the_error_is_that_of_the_outputs() -> None:
    x = torch.randn(5, 100, dtype=torch.float64)
    weight, change = torch.randn(2, 1, 3, 5, dtype=torch.float64)
    hessian = (2 / 100 * x @ x.T)[None]
    expected = ((weight + change - weight)[0] @ x).square().sum(0).mean()
    assert solvers.squared_error(change, hessian) == pytest.approx(float(expected))


@given(Seeds, st.integers(1, 5), st.integers(1, 300), st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_as_many_are_pruned_as_are_marked(seed: int, outputs: int, inputs: int, share: float) -> None:
    weight, hessian = problem(seed, outputs, inputs)
    marks = torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < share
    found, pruned = prune(weight, hessian, solvers.as_many_as(marks))
    assert int(pruned.sum()) == int(marks.sum())
    assert torch.equal(found == 0, pruned)
    _, pruned = prune(weight, hessian, solvers.as_many_as(marks, per_output=True))
    assert torch.equal(pruned.sum(-1), marks.sum(-1))


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 3), (3, 130)])
def test_n_of_m_are_kept(n: int, m: int) -> None:
    weight, hessian = problem(0, 3, 2 * m)
    found, pruned = prune(weight, hessian, solvers.n_of_m(n), m)
    assert ((~pruned).view(3, 2, m).sum(-1) == n).all()
    assert torch.equal(found == 0, pruned)


def test_what_is_zero_stays_zero_and_what_stays_is_kept() -> None:
    weight, hessian = problem(3, 4, 20)
    zeros = torch.rand(weight.shape) < 0.3
    stay = (torch.arange(20) == 19).expand_as(weight)
    zeros &= ~stay
    weight.masked_fill_(zeros, 0)
    for marks, expected in ((torch.ones_like(zeros), ~stay), (torch.zeros_like(zeros), zeros)):
        _, pruned = prune(weight, hessian, solvers.with_fixed(solvers.as_many_as(marks), zeros, stay))
        assert torch.equal(pruned, expected)


def test_compensation_has_a_lower_error_than_none() -> None:
    weight, hessian = problem(1, 16, 40)
    marks = solvers.lowest_of_rows(weight.abs(), torch.full((1, 16), 28))
    found, _ = prune(weight, hessian, solvers.exactly(marks))
    plain = solvers.squared_error(weight * marks, hessian)
    assert solvers.squared_error(weight - found, hessian) < plain


@given(Seeds, st.integers(1, 40), st.integers(1, 3), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_the_root_of_the_inverse(seed: int, inputs: int, groups: int, triangle: int) -> None:
    _, hessian = problem(seed, 1, inputs, groups)
    with mock.patch.object(solvers, "TRIANGLE", triangle):
        root = solvers.InverseRoot(hessian.clone(), 0.0)
    inverse = torch.linalg.inv(hessian)
    torch.testing.assert_close(root.factor.mT @ root.factor, inverse)
    torch.testing.assert_close(root.inverse_diagonal(), inverse.diagonal(dim1=1, dim2=2))
    assert torch.equal(root.factor, root.factor.triu())


@given(Seeds, st.integers(1, 9), st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_the_error_by_the_root_is_that_before_damping(seed: int, inputs: int, groups: int) -> None:
    change, hessian = problem(seed, 4, inputs, groups)
    expected = solvers.squared_error(change, hessian)
    assert solvers.InverseRoot(hessian, 0.1).squared_error(change) == pytest.approx(expected)


def test_inputs_that_are_zero_have_a_root() -> None:
    root = solvers.InverseRoot(torch.zeros(2, 3, 3))
    torch.testing.assert_close(root.factor, torch.eye(3).expand(2, 3, 3))
    assert root.squared_error(torch.ones(2, 4, 3)) == 0


def test_a_hessian_that_is_almost_singular_is_damped_more() -> None:
    """Inputs that are all alike, some of them a thousand times as large: rounding makes the Hessian indefinite."""
    x = torch.randn(1, 1, 64) * torch.logspace(0, 3, 600)[None, :, None]
    hessian = 2 / 64 * x @ x.mT
    assert torch.isfinite(solvers.InverseRoot(hessian.clone(), 1e-9).factor).all()
    with pytest.raises(ValueError, match="damping="):
        solvers.InverseRoot(hessian.clone(), 0.0)

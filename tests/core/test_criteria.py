"""Criteria against slow and obvious versions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout import criteria

NUMBERS = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1e-20, 3e-5]) | st.floats(-4, 4, width=32)


def slow_lamp(weights: list[float]) -> list[float]:
    """The definition: a weight's square over those of all weights that come no earlier in the order of magnitude."""
    order = sorted(range(len(weights)), key=lambda i: (weights[i] ** 2, i))
    scores = [0.0] * len(weights)
    for place, i in enumerate(order):
        total = math.fsum(weights[j] ** 2 for j in order[place:])
        scores[i] = weights[i] ** 2 / total if total else 0.0
    return scores


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_lamp_against_its_definition(weights: list[float]) -> None:
    found = criteria.lamp(torch.tensor(weights, dtype=torch.float64))
    assert found.tolist() == pytest.approx(slow_lamp(weights), rel=1e-12, abs=1e-15)
    if any(weights):
        assert found.max() == 1


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_lamp_ranks_a_layer_by_magnitude_and_does_not_see_pruned_weights(seed: int, kept: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(20, 30, generator=generator)
    mask = torch.rand(20, 30, generator=generator) < kept
    pruned = weight * mask
    scores = criteria.lamp(pruned)
    assert scores.shape == weight.shape
    assert torch.equal(scores.flatten().argsort(stable=True), pruned.abs().flatten().argsort(stable=True))
    assert not scores[~mask].any()
    torch.testing.assert_close(scores[mask], criteria.lamp(weight[mask]), rtol=1e-12, atol=0)  # the same without them


def test_lamp_of_unusual_tensors() -> None:
    assert criteria.lamp(torch.zeros(3, 2)).tolist() == [[0, 0]] * 3
    assert criteria.lamp(torch.zeros(0, 4)).shape == (0, 4)
    assert criteria.lamp(torch.tensor(-2.0)).item() == 1
    assert criteria.lamp(torch.tensor([1.0, 1.0, 1.0])).tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert not criteria.lamp(torch.tensor([1.0, math.nan])).isfinite().all()
    assert not criteria.lamp(torch.tensor([1.0, math.inf])).isfinite().all()
    image = torch.randn(4, 3, 2, 2)
    assert torch.equal(criteria.lamp(image), criteria.lamp(image.to(memory_format=torch.channels_last)))


def test_lamp_of_many_weights_is_precise() -> None:
    weight = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    squares, order = weight.double().square().sort(stable=True)
    expected = torch.empty_like(squares).scatter_(0, order, squares / squares.flip(0).cumsum(0).flip(0))
    torch.testing.assert_close(criteria.lamp(weight), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("criterion", "others", "expected"),
    [
        (criteria.relative_magnitude, {"fan_in": torch.tensor([4.0, 4.0, 9.0])}, [4.0, 1.0, 9.0]),
        (criteria.fisher_saliency, {"fisher": torch.tensor([4.0, 1.0, 0.0])}, [16.0, 0.25, 0.0]),
        (
            lambda weight, fisher: criteria.fisher_saliency(weight, fisher, power=0.5),
            {"fisher": torch.tensor([4.0, 1.0, 9.0])},
            [8.0, 0.25, 27.0],
        ),
    ],
)
def test_criteria_by_hand(criterion: criteria.Criterion, others: dict[str, Tensor], expected: list[float]) -> None:
    assert criterion(torch.tensor([-2.0, 0.5, 3.0]), **others).tolist() == pytest.approx(expected)

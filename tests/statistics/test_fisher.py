"""The mean of squared gradients, against weights that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flipout
from flipout.statistics import FullSquaredGradient, Place, SquaredGradient
from tests.helpers import batches, cross_entropy, mlp, sgd, train


@given(
    st.integers(1, 8),
    st.lists(st.none() | st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3), min_size=1, max_size=20),
)
def test_the_mean_against_its_weights(horizon: int, history: list[list[float] | None]) -> None:
    """Weights of the newest gradient and of each before it: 1/t at first, 1/horizon later. None is no gradient."""
    statistic = SquaredGradient(torch.zeros(3), Place(), horizon=horizon)
    for values in history:
        statistic.before_all([statistic], [torch.zeros(3)], [None if values is None else torch.tensor(values)])
    seen = [values for values in history if values is not None]
    weights = np.zeros(0)
    for t in range(1, len(seen) + 1):
        newest = 1 / min(t, horizon)
        weights = np.append(weights * (1 - newest), newest)
    expected = weights @ np.array(seen, dtype=np.float64).reshape(-1, 3) ** 2
    assert statistic.value(torch.zeros(3), 0).tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    if seen:
        assert weights.sum() == pytest.approx(1)  # no bias towards the zeros that it starts from


def test_half_precision_gradients_do_not_vanish() -> None:
    weight = torch.zeros(2, dtype=torch.float16)
    statistic = SquaredGradient(weight, Place())
    statistic.before_all([statistic], [weight], [torch.full((2,), 1e-4, dtype=torch.float16)])
    assert statistic.value(weight, 0).tolist() == pytest.approx([1e-8, 1e-8], rel=1e-2)
    assert SquaredGradient(weight.double(), Place()).state["mean"].dtype == torch.float64


def test_a_horizon_is_at_least_one_gradient() -> None:
    with pytest.raises(ValueError, match="horizon is 0"):
        SquaredGradient(torch.zeros(3), Place(), horizon=0)


@pytest.mark.parametrize("statistic", [SquaredGradient, FullSquaredGradient])
def test_pruned_weights_fade_or_go_on(statistic: type[SquaredGradient]) -> None:
    """With masked gradients a pruned weight has no gradient; with unmasked ones its mean continues."""
    model = mlp()
    optimizer = sgd(model, lr=0.0)  # so that the gradients do not depend on what was pruned later
    pruner = flipout.Pruner(
        model,
        optimizer,
        criterion=flipout.criteria.fisher_saliency,
        schedule=flipout.OneShot(0.5, 20, 0),
        statistics={"fisher": statistic},
    )
    pruned = ~pruner.masks["0.weight"]
    total = torch.zeros_like(pruner.weights[0].parameter)
    plain = mlp()
    plain.load_state_dict(model.state_dict())  # with its zeros
    for x, y in batches(10):
        plain.zero_grad()
        cross_entropy(plain(x), y).backward()
        grad = plain.get_parameter("0.weight").grad
        assert grad is not None
        total += grad.square() / 10
    train(model, optimizer, 10)
    found = pruner.statistics["fisher"]["0.weight"]
    torch.testing.assert_close(found[~pruned], total[~pruned])
    if statistic is SquaredGradient:
        assert not found[pruned].any()
    else:
        torch.testing.assert_close(found[pruned], total[pruned])

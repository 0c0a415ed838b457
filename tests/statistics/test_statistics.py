"""What is tracked, against a recount from recorded weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.statistics import Deviation, Gradient, Place
from tests.helpers import batches, cross_entropy, mlp, sgd, train


def test_flips_in_training_against_recorded_weights() -> None:
    """Zeros included: some weights start there, one is put there between steps, which is no flip."""
    model = mlp()
    with torch.no_grad():
        model.get_parameter("0.weight")[:4] = 0.0
    optimizer = sgd(model, lr=0.5)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.8, steps=60)
    expected = {name: torch.zeros_like(mask, dtype=torch.int64) for name, mask in pruner.masks.items()}
    parameters = dict(model.named_parameters())
    for number, (x, y) in enumerate(batches(60)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if number % 7 == 3:
            with torch.no_grad():
                parameters["2.weight"][0] *= -1  # not by an optimizer step
        before = {name: parameters[name].detach().sign() for name in expected}
        pruned = {name: ~mask for name, mask in pruner.masks.items()}
        frozen = {name: flips[pruned[name]].clone() for name, flips in pruner.statistics["flips"].items()}
        optimizer.step()
        for name, count in expected.items():
            flips, kept = pruner.statistics["flips"][name], pruner.masks[name]
            count += parameters[name].detach().sign() != before[name]
            # What this very step has pruned no longer shows the value that the step gave it.
            assert torch.equal(flips[kept], count[kept].int()), name
            assert torch.equal(flips[pruned[name]], frozen[name]), name
    assert any(count.max() > 2 for count in expected.values())


def test_weights_that_were_replaced_between_steps_have_not_flipped() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.0)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=100)
    for sign in (1, -1, 1):
        nn.utils.vector_to_parameters(sign * nn.utils.parameters_to_vector(model.parameters()), model.parameters())
        train(model, optimizer, 1)
    assert not any(flips.any() for flips in pruner.statistics["flips"].values())


@given(
    st.integers(1, 8),
    st.lists(st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3), min_size=1, max_size=20),
)
def test_deviation_against_weighted_moments(horizon: int, history: list[list[float]]) -> None:
    tracker = Deviation(torch.zeros(3), Place(), horizon=horizon)
    for values in history:
        tracker.after_all([tracker], [torch.tensor(values)], [torch.ones(3, dtype=torch.bool)])
    # Weights of the newest value and of each before it: 1/t at first, 1/horizon later.
    weights = np.zeros(0)
    for t in range(1, len(history) + 1):
        newest = 1 / min(t, horizon)
        weights = np.append(weights * (1 - newest), newest)
    data = np.array(history, dtype=np.float64)
    mean = weights @ data
    expected = np.sqrt(weights @ (data - mean) ** 2)
    assert tracker.value(torch.zeros(3), 0).tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_deviation_is_the_plain_one_up_to_its_horizon() -> None:
    values = torch.randn(50, 10)
    tracker = Deviation(values[0], Place(), horizon=50)
    for value in values:
        tracker.after_all([tracker], [value], [torch.ones(10, dtype=torch.bool)])
    torch.testing.assert_close(tracker.value(values[0], 0), values.std(0, correction=0))


def test_a_horizon_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="horizon is 0"):
        Deviation(torch.zeros(3), Place(), horizon=0)


def test_the_gradient_is_the_losss_own_without_noise() -> None:
    model = mlp()
    optimizer = sgd(model)

    def criterion(weight: Tensor, grad: Tensor) -> Tensor:
        return (weight * grad).abs()

    pruner = flipout.Pruner(
        model, optimizer, criterion=criterion, schedule=flipout.OneShot(0.5, 20, 1), noise=flipout.GradientNoise(5.0)
    )
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    optimizer.step()
    for name, grad in pruner.statistics["grad"].items():
        assert torch.equal(grad, expected[name])


def test_a_step_without_gradient_keeps_the_last() -> None:
    tracker = Gradient(torch.zeros(2), Place())
    for grad in (torch.ones(2), None):
        tracker.before_all([tracker], [torch.zeros(2)], [grad])
    assert tracker.value(torch.zeros(2), 0).tolist() == [1, 1]


def test_only_what_the_criterion_asks_for_is_tracked() -> None:
    model = mlp()
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.5, steps=10)
    assert set(pruner.statistics) == {"weight"}
    assert pruner.state_dict()["statistics"] == {"weight": {"0.weight": {}, "2.weight": {}, "4.weight": {}}}


def test_a_statistic_of_ones_own() -> None:
    class Largest(flipout.Statistic):
        """The largest magnitude that the weight has had."""

        def __init__(self, weight: Tensor, place: Place) -> None:
            super().__init__(weight, place)
            self.state["largest"] = torch.zeros_like(weight)

        def after(self, weight: Tensor, alive: Tensor) -> None:
            self.state["largest"] = torch.maximum(self.state["largest"], weight.abs())

        def value(self, weight: Tensor, step: int) -> Tensor:
            return self.state["largest"]

    def criterion(largest: Tensor) -> Tensor:
        return largest

    model: nn.Module = mlp()
    optimizer = sgd(model)
    pruner = flipout.Pruner(
        model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.75, 40), statistics={"largest": Largest}
    )
    train(model, optimizer, 40)
    assert pruner.nonzero == 88
    assert "largest" in pruner.state_dict()["statistics"]

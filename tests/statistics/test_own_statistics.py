"""Statistics of a user's own: the gradient they ask for, kernels and readers, and criteria that bring them along."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.statistics import Place, Value
from tests.helpers import assert_masked, batches, cross_entropy, full_gradients, mlp, sgd, train


class Seen(flipout.Statistic):
    """Keeps the gradient it was shown."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["seen"] = torch.zeros_like(weight)

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        assert grad is not None
        self.state["seen"].copy_(grad)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["seen"]


class SeenWhole(Seen):
    gradient = "unmasked"


def two_gradients(weight: Tensor, seen: Tensor, whole: Tensor) -> Tensor:
    return weight.abs() + 0 * seen + 0 * whole


@pytest.mark.parametrize("noise", [None, 1.0])
def test_the_gradient_before_and_after_masking(noise: float | None) -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.8, 20, prunings=2, window=(0, 0.2))
    pruner = flipout.Pruner(
        model,
        optimizer,
        criterion=two_gradients,
        schedule=schedule,
        noise=noise,
        statistics={"seen": Seen, "whole": SeenWhole},
    )
    train(model, optimizer, 6)
    assert pruner.finished
    optimizer.zero_grad()
    x, y = next(batches(1, seed=5))
    cross_entropy(model(x), y).backward()
    gradients = full_gradients(model, [(x, y)])
    optimizer.step()
    for name, mask in pruner.masks.items():
        assert torch.equal(pruner.statistics["whole"][name], gradients[name])
        assert torch.equal(pruner.statistics["seen"][name], gradients[name] * mask)
        assert gradients[name][~mask].any()


class Largest(flipout.Statistic):
    """The largest magnitude that a weight has had; an elementwise kernel and reader."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["largest"] = torch.zeros_like(weight)

    @staticmethod
    def kernel(weight: Tensor, mask: Tensor, largest: Tensor) -> None:
        largest.copy_(torch.maximum(largest, weight.abs() * mask))

    @staticmethod
    def reader(weight: Tensor, largest: Tensor) -> Tensor:
        return largest * 1.0

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["largest"]


@flipout.criteria.with_statistics(largest=Largest)
@flipout.criteria.elementwise
def fallen(weight: Tensor, largest: Tensor, flips: Tensor, *, power: float = 0.5) -> Tensor:
    return weight.abs() * largest.pow(power) / (flips + 1)


def trained(compile: bool, criterion: Callable[..., Tensor]) -> flipout.Pruner:  # noqa: A002
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.9, 30, prunings=5)
    pruner = flipout.Pruner(model, optimizer, criterion=criterion, schedule=schedule, compile=compile)
    train(model, optimizer, 30, after=lambda: assert_masked(pruner))
    return pruner


def test_two_kernels_run_fused_as_they_run_alone() -> None:
    """Compiled into one loop with the zeroing and the criterion, or block by block: the same masks and statistics."""
    fast, slow = (trained(compile, fallen) for compile in (True, False))  # noqa: A001
    for name, mask in slow.masks.items():
        assert torch.equal(fast.masks[name], mask)
        for statistic in ("largest", "flips"):
            assert torch.equal(fast.statistics[statistic][name], slow.statistics[statistic][name])


def test_kernels_keep_what_they_should() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.5, 30, prunings=1)
    pruner = flipout.Pruner(model, optimizer, criterion=fallen, schedule=schedule)
    largest = {weight.name: torch.zeros_like(weight.parameter) for weight in pruner.weights}
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}

    def recount() -> None:
        for weight in pruner.weights:
            seen = weight.parameter.detach().abs() * masks[weight.name]
            alive = weight.mask  # what was pruned in this step is zero already, and only its kernel saw its last value
            largest[weight.name] = torch.where(alive, torch.maximum(largest[weight.name], seen), largest[weight.name])
            masks[weight.name] = weight.mask.clone()

    train(model, optimizer, 30, after=recount)
    for weight in pruner.weights:
        assert torch.equal(pruner.statistics["largest"][weight.name][weight.mask], largest[weight.name][weight.mask])


def test_a_criterion_brings_its_statistics_through_partial() -> None:
    pruner = trained(False, partial(fallen, power=1.0))
    assert set(pruner.statistics) == {"weight", "largest", "flips"}
    assert pruner.nonzero == 35


def test_a_statistic_passed_to_the_pruner_wins() -> None:
    class Ones(flipout.Statistic):
        def value(self, weight: Tensor, step: int) -> Tensor:
            return torch.ones_like(weight)

    model = mlp()
    options: dict[str, Any] = {"criterion": fallen, "schedule": flipout.Geometric(0.9, 30)}
    pruner = flipout.Pruner(model, sgd(model), statistics={"largest": Ones}, **options)
    assert all(bool((value == 1).all()) for value in pruner.statistics["largest"].values())


class Inverse(Value):
    """Overrides the value of a statistic that has a reader."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        return 1 / (weight.abs() + 1e-6)


class Late(Largest):
    """Overrides the update of a statistic that has a kernel."""

    def after(self, weight: Tensor, alive: Tensor) -> None:
        self.state["largest"].fill_(7)


def test_an_override_is_not_replaced_by_an_inherited_fused_form() -> None:
    assert Inverse.reader is None
    assert Late.kernel is None
    assert Late.reader is not None
    masks = []
    for compile in (True, False):  # noqa: A001
        model = mlp()
        optimizer = sgd(model)
        pruner = flipout.Pruner(
            model,
            optimizer,
            criterion=flipout.criteria.magnitude,
            schedule=flipout.Geometric(0.5, 10),
            statistics={"weight": Inverse},
            compile=compile,
        )
        train(model, optimizer, 10)
        masks.append(pruner.masks)
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


@flipout.criteria.elementwise
def rounded(weight: Tensor, *, digits: int = 3) -> Tensor:
    return torch.round(weight.abs(), decimals=digits)


def test_whole_numbers_stay_whole_in_a_compiled_criterion() -> None:
    fast, slow = (trained(compile, rounded) for compile in (True, False))  # noqa: A001
    assert all(torch.equal(fast.masks[name], mask) for name, mask in slow.masks.items())


def test_a_criterion_that_holds_a_pruner_does_not_keep_it_alive() -> None:
    class Mine(flipout.Pruner):
        def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            super().__init__(
                model, optimizer, criterion=self.saliency, schedule=flipout.Geometric(0.5, 10), compile=True
            )

        @flipout.criteria.elementwise
        def saliency(self, weight: Tensor) -> Tensor:
            return weight.abs()

    model = mlp()
    optimizer = sgd(model)
    pruner = Mine(model, optimizer)
    train(model, optimizer, 10)
    reference = weakref.ref(pruner)
    pruner.remove()
    del pruner, optimizer
    gc.collect()
    assert reference() is None


class Scalar(flipout.Statistic):
    """A kernel whose state does not have the weight's shape."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["count"] = torch.zeros(())

    @staticmethod
    def kernel(weight: Tensor, mask: Tensor, count: Tensor) -> None:
        count.add_(1)


def test_a_kernel_needs_state_of_the_weights_shape() -> None:
    model = mlp()
    with pytest.raises(TypeError, match="'scalar'"):
        flipout.Pruner(
            model,
            sgd(model),
            criterion=lambda weight, scalar: weight.abs(),
            schedule=flipout.Geometric(0.5, 10),
            statistics={"scalar": Scalar},
        )


def test_a_statistic_that_nobody_knows() -> None:
    class Wrong(flipout.Pruner):
        tracks = ("fullgrad",)

    model = mlp()
    with pytest.raises(ValueError, match="tracks fullgrad"):
        Wrong(model, sgd(model), criterion=flipout.criteria.magnitude, schedule=flipout.Geometric(0.5, 10))

"""Each method against a slow and obvious implementation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import flipout
from tests.helpers import assert_masked, make, mlp, sgd, train
from tests.methods.masks import equal, smallest


def at_first_pruning(method: str, **options: Any) -> tuple[flipout.Pruner, list[list[Tensor]]]:
    """Trains up to and including one pruning at step 10; the weights after each update, before what was pruned went."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, sparsity=0.5, schedule=flipout.OneShot(0.5, 40, 0.25), **options)
    history: list[list[Tensor]] = []

    def record() -> None:
        history.append([weight.parameter.detach().clone() for weight in pruner.weights])

    pruner.stepped = record  # type: ignore[method-assign]
    train(model, optimizer, 10)
    assert pruner.nonzero == 176
    return pruner, history


def test_magnitude() -> None:
    pruner, history = at_first_pruning("magnitude")
    assert equal(pruner, smallest([weight.abs() for weight in history[-1]], 176))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 3.3])
def test_flipout(p: float) -> None:
    start = [mlp().get_parameter(f"{i}.weight").detach() for i in (0, 2, 4)]
    pruner, history = at_first_pruning("flipout", p=p)
    scores = []
    for number in range(3):
        values = [start[number], *(weights[number] for weights in history)]
        flips = sum((a.sign() != b.sign()).int() for a, b in pairwise(values))
        scores.append(values[-1].abs() ** p / (flips + 1))
    assert equal(pruner, smallest(scores, 176))


@pytest.mark.parametrize("horizon", [4, 100])
def test_magnitude_uncertainty(horizon: int) -> None:
    pruner, history = at_first_pruning("magnitude-uncertainty", lambda_=0.02, horizon=horizon)
    scores = []
    for number in range(3):
        mean, variance = torch.zeros_like(history[0][number]), torch.zeros_like(history[0][number])
        for t, weights in enumerate(history, 1):
            share = 1 / min(t, horizon)
            old = mean
            mean = (1 - share) * mean + share * weights[number]
            variance = (1 - share) * (variance + (old - mean) ** 2) + share * (weights[number] - mean) ** 2
        scores.append(history[-1][number].abs() / (0.02 + variance.sqrt()))
    expected = smallest(scores, 176)
    off = sum(int((a != b).sum()) for a, b in zip(pruner.masks.values(), expected, strict=True))
    assert off <= 2  # rounding may swap two neighbours


def test_random_is_uniform_and_its_seed_matters() -> None:
    counts = torch.zeros(352)
    for seed in range(200):
        model = mlp()
        schedule = flipout.OneShot(0.75, 10, 0)
        pruner = flipout.Random(model, sgd(model), sparsity=0.75, steps=10, schedule=schedule, seed=seed)
        counts += torch.cat([mask.flatten() for mask in pruner.masks.values()])
        pruner.remove()
    assert counts.sum() == 200 * 88
    statistic = float(((counts - 50) ** 2 / (200 * 0.25 * 0.75)).sum())  # about chi-square with 352 degrees
    assert 250 < statistic < 480


def test_random_draws_anew_at_each_pruning() -> None:
    model = mlp()
    pruner = flipout.Random(model, sgd(model), sparsity=0.75, steps=10)
    first = pruner.statistics["uniform"]["0.weight"]
    assert torch.equal(first, pruner.statistics["uniform"]["0.weight"])
    train(model, pruner.optimizer, 1)
    assert not torch.equal(first, pruner.statistics["uniform"]["0.weight"])


def test_dense_changes_nothing() -> None:
    plain, model = mlp(), mlp()
    train(plain, sgd(plain), 20)
    optimizer = sgd(model)
    pruner = flipout.Dense(model, optimizer, sparsity=0.99, steps=20)
    train(model, optimizer, 20)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert (pruner.nonzero, pruner.sparsity, pruner.finished) == (352, 0.0, True)
    assert str(pruner.plan()) == "no pruning"


def test_keep_zeros() -> None:
    model = mlp()
    with torch.no_grad():
        for layer in (0, 2, 4):
            weight = model.get_parameter(f"{layer}.weight")
            weight[weight.abs() < 0.1] = 0
    kept: list[Tensor] = [model.get_parameter(f"{i}.weight").detach() != 0 for i in (0, 2, 4)]
    optimizer = sgd(model)
    pruner = flipout.KeepZeros(model, optimizer)
    train(model, optimizer, 20, after=lambda: assert_masked(pruner))
    assert equal(pruner, kept)
    assert 0 < pruner.sparsity < 1


def test_noise_on_any_method() -> None:
    for method in sorted(set(flipout.METHODS) - {"flipout", "deep-r", "keep-zeros"}):
        results = []
        for noise in (None, 1.0):
            model = mlp()
            optimizer = sgd(model)
            make(method, model, optimizer, noise=noise)
            train(model, optimizer, 3)
            results.append(model.get_parameter("0.weight").detach().clone())
        assert not torch.equal(*results), method


def test_the_names_of_the_methods() -> None:
    ours = {name for name, record in flipout.METHODS.items() if record.cls.__module__.startswith("flipout.")}
    assert ours == {
        "flipout",
        "flipout-paper",
        "magnitude",
        "random",
        "relative-magnitude",
        "lamp",
        "fisher",
        "rigl",
        "granet",
        "snip",
        "hoyer-square",
        "variational-dropout",
        "l0",
        "obs",
        "dynamic-sparse-training",
        "magnitude-uncertainty",
        "deep-r",
        "lottery",
        "dense",
        "keep-zeros",
    }
    assert all(issubclass(record.cls, flipout.Pruner) for record in flipout.METHODS.values())

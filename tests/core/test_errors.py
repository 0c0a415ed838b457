"""Bad input and bad moments: the error names the fix, and nothing is lost."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import batches, cross_entropy, mlp, sgd, train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, "sparsity is 1.0; give a share"),
        ({"sparsity": -0.5}, "sparsity is -0.5"),
        ({"sparsity": 99}, "sparsity is 99"),
        ({"steps": 1}, "do not fit into the 0 steps"),
        ({"steps": 0}, "number of optimizer steps"),
        ({"steps": 3, "schedule": "paper"}, "3 steps are too few"),
        ({"schedule": "papers"}, "schedule is 'papers'; give a schedule such as Cubic"),
        ({"schedule": flipout.Cubic(0.8, 40)}, r"the schedule has sparsity=0\.8, but the method has sparsity=0\.9"),
        ({"p": -1}, "p is -1"),
        ({"p": float("inf")}, "p is inf"),
        ({"noise": -1.0}, "noise scale is -1.0"),
        ({"scope": "local"}, "scope is 'local'; give 'global' or 'layer'"),
        ({"floor": -1}, "floor is -1"),
        ({"floor": 1.5}, "floor is 1.5"),
        ({"floor": 20}, "floor=20 keeps 60 weights in 3 layers, but the requested sparsity leaves only 35"),
        ({"floor": 0.2}, r"floor=0\.2 keeps 72 weights"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        flipout.PaperFlipOut(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "weight"}, "noise is 'weight'; give a number"),
        ({"schedule": 0.9}, "schedule is 0.9; give a schedule"),
    ],
)
def test_things_of_the_wrong_kind(options: dict[str, Any], message: str) -> None:
    model = mlp()
    given = {"criterion": flipout.criteria.magnitude, "schedule": flipout.Geometric(0.5, 10), **options}
    with pytest.raises(TypeError, match=message):
        flipout.Pruner(model, sgd(model), **given)


@pytest.mark.parametrize("options", [{"steps": None}, {"steps": float("inf")}, {"sparsity": "0.9"}, {"steps": 10.5}])
def test_numbers_that_are_none(options: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        flipout.PaperFlipOut(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})


def test_optimizers_that_cannot_be_hooked() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="LBFGS takes several inner steps"):
        flipout.PaperFlipOut(model, torch.optim.LBFGS(model.parameters()), sparsity=0.5, steps=10)
    with pytest.raises(TypeError, match=r"optimizer is a list; pass a torch\.optim\.Optimizer"):
        flipout.AimTest(model, list(model.parameters()))  # type: ignore[arg-type]


def test_a_second_pruner_on_the_same_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    first = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)
    for other in (optimizer, sgd(model)):
        with pytest.raises(
            ValueError, match=r"0\.weight, 2\.weight, 4\.weight is already pruned by PaperFlipOut.*remove"
        ):
            flipout.GlobalMagnitude(model, other, sparsity=0.5, steps=10)
    first.remove()
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10)


def test_criteria_that_cannot_be() -> None:
    def build(criterion: Any) -> None:
        model = mlp()
        optimizer = sgd(model)
        flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.5, 10))
        train(model, optimizer, 10)

    with pytest.raises(
        ValueError, match="asks for weights, hessian, but the statistics are weight, grad, full_grad, flips"
    ):
        build(lambda weights, hessian: weights)
    for nonsense in (torch.abs, "magnitude"):
        with pytest.raises(ValueError, match="has no readable signature; wrap it"):
            build(nonsense)
    with pytest.raises(ValueError, match="takes no statistics"):
        build(lambda: torch.ones(3))
    with pytest.raises(ValueError, match=r"scores of shape \(16,\) for 0\.weight of shape \(16, 12\)"):
        build(lambda weight: weight.abs().sum(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_name_their_layer_and_prune_nothing(value: float) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 10)
    kept = pruner.nonzero
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    row = int(pruner.masks["2.weight"].any(1).nonzero()[0])
    column = int(pruner.masks["2.weight"][row].nonzero()[0])
    optimizer.zero_grad()
    with torch.no_grad():
        model.get_parameter("2.weight")[row, column] = value
    with pytest.raises(
        FloatingPointError, match=r"2\.weight has NaN or infinite scores at step 11.*lower the learning rate"
    ):
        optimizer.step()
    assert pruner.nonzero == kept
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", [flipout.PaperFlipOut, flipout.FlipOut])
def test_a_nan_in_a_pruned_place_is_no_harm(method: type[flipout.FlipOut], compile: bool) -> None:  # noqa: A002
    model = mlp()
    optimizer = sgd(model)
    pruner = method(model, optimizer, sparsity=0.9, steps=20, compile=compile)
    train(model, optimizer, 10)
    for x, y in batches(3, seed=8):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        for weight in pruner.weights:
            assert weight.parameter.grad is not None
            weight.parameter.grad[~weight.mask] = float("nan")
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_sparse_gradient() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10, include=["0", "1"])
    model(torch.tensor([1, 2])).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"0\.weight has a sparse gradient: use sparse=False"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("scale", "rate", "warned"), [(1.0, 0.1, True), (0.1, 0.1, True), (1.0, 1e-4, False)])
def test_noise_as_printed_is_warned_of_where_it_cannot_work(scale: float, rate: float, warned: bool) -> None:
    model = mlp()
    optimizer = sgd(model, lr=rate)
    noise = flipout.GradientNoise(scale, "weight")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=1000, noise=noise)
    assert pruner.noise is noise
    diverging = [str(w.message) for w in caught if w.category is flipout.DivergenceWarning]
    assert len(diverging) == warned
    assert all("relative_to='gradient'" in message for message in diverging)


@pytest.mark.parametrize(("rate", "momentum", "decay"), [(0.1, 0.9, 5e-4), (0.1, 0.0, 0.0), (0.3, 0.5, 0.1)])
def test_noise_as_printed_makes_weights_grow_as_fast_as_foretold(rate: float, momentum: float, decay: float) -> None:
    weights = nn.ParameterList([nn.Parameter(torch.randn(300, 300))])
    optimizer = torch.optim.SGD(weights, rate, momentum=momentum, weight_decay=decay)
    noise = flipout.GradientNoise(1.0, "weight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", flipout.DivergenceWarning)
        flipout.Dense(weights, optimizer, steps=200, noise=noise, include="*")
    before = float(weights[0].detach().norm())
    for _ in range(200):
        weights[0].grad = torch.zeros(300, 300)
        optimizer.step()
    measured = math.log(float(weights[0].detach().norm()) / before) / 200
    assert noise.growth(rate, momentum, decay) == pytest.approx(measured, rel=0.05)


def test_warnings_as_errors_leave_a_pruning_whole() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("4.weight").mul_(1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=4, rounds=1)
    early = [weight.parameter.detach().clone() for weight in pruner.weights]
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadLayerWarning)
        with pytest.raises(flipout.DeadLayerWarning):
            train(model, optimizer, 2)
    assert pruner.finished
    assert "not finished" not in str(pruner.summary())
    for weight, values in zip(pruner.weights, early, strict=True):
        assert torch.equal(weight.parameter.detach(), values * weight.mask)


# A schedule that is not finished.


def test_unfinished_in_the_summary_and_at_remove() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=160)  # counted in batches, of four a step
    train(model, optimizer, 40)
    text = str(pruner.summary())
    assert "not finished: 40 optimizer steps were taken, and the last pruning is due at step 80 of 160" in text
    assert "batches / accumulation" in text
    with pytest.warns(flipout.UnfinishedWarning, match="gradient accumulation"):
        pruner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruner.remove()


def test_unfinished_when_it_is_dropped() -> None:
    def forgotten(steps: int) -> None:
        model = mlp()
        optimizer = sgd(model)
        flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=40)
        train(model, optimizer, steps)

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forgotten(10)
        gc.collect()
    assert [w.category for w in caught] == [flipout.UnfinishedWarning]
    assert "10 optimizer steps were taken" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forgotten(20)  # the last pruning is done
        gc.collect()


def test_unfinished_when_the_program_ends() -> None:
    code = (
        "import torch, flipout\n"
        "model = torch.nn.Linear(9, 9)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UnfinishedWarning: the schedule is not finished: 0 optimizer steps were taken" in done.stderr


def test_a_pruner_nobody_keeps_still_prunes() -> None:
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)

    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer)
    gc.collect()
    train(model, optimizer, 20)
    zeros: list[Tensor] = [model.get_parameter(f"{i}.weight").detach() == 0 for i in (0, 2, 4)]
    assert sum(int(zero.sum()) for zero in zeros) == 352 - 35

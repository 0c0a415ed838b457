"""One training run, exactly the sparsity asked for, and a model that is not touched."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import OPTIMIZERS, assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, train


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("method", ["flipout", "magnitude"])
def test_exact_and_zero_after_every_step(method: str, optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = make(method, model, optimizer, sparsity=0.93, steps=40)
    kept = {pruning.step: pruning.nonzero for pruning in pruner.plan()}
    expected: int | None = pruner.prunable

    def check() -> None:
        nonlocal expected
        expected = kept.get(pruner.step, expected)
        assert pruner.nonzero == expected
        assert_masked(pruner)

    train(model, optimizer, 40, after=check)
    assert pruner.finished
    assert pruner.nonzero == round(pruner.prunable * 0.07) == 25
    assert pruner.sparsity == 1 - 25 / 352


@pytest.mark.parametrize("method", [name for name in flipout.METHODS if name not in ("dense", "keep-zeros")])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_every_method_ends_at_exactly_the_sparsity(method: str, scope: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, scope=scope)
    assert isinstance(pruner, flipout.Pruner)
    train(model, optimizer, 40, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 35 == round(pruner.prunable * 0.1)
    if scope == "layer":
        assert [weight.kept for weight in pruner.weights] == [19, 13, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_other_precisions_and_powers(dtype: torch.dtype, p: float) -> None:
    """Each pruning takes the lowest |w|^p / (flips + 1), computed here by sorting."""
    torch.manual_seed(0)
    weights = nn.ParameterList([nn.Parameter((torch.randn(shape) * 1e-3).to(dtype)) for shape in [(9, 7), (5, 4)]])
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    pruner = flipout.PaperFlipOut(weights, optimizer, sparsity=0.8, steps=20, p=p, include="*", noise=0.0)
    scores: list[Tensor] = []
    original = pruner.prune

    def prune(pruning: Any) -> None:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        flips = list(pruner.statistics["flips"].values())
        scores[:] = [w.detach().to(wide).abs().pow(p) / (f + 1) for w, f in zip(weights, flips, strict=True)]
        alive = [mask.clone() for mask in pruner.masks.values()]
        original(pruning)
        ranked = sorted(
            (float(scores[t].flatten()[i]), t, i)
            for t in range(2)
            for i in range(scores[t].numel())
            if alive[t].flatten()[i]
        )
        gone = {(t, i) for _, t, i in ranked[: len(ranked) - pruning.nonzero]}
        for t, mask in enumerate(pruner.masks.values()):
            for i, keeps in enumerate(mask.flatten().tolist()):
                assert keeps == (bool(alive[t].flatten()[i]) and (t, i) not in gone)

    pruner.prune = prune  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
        optimizer.step()
        assert_masked(pruner)
    assert pruner.nonzero == 17


def test_ones_own_criterion_of_one_expression() -> None:
    model = mlp()
    optimizer = sgd(model)
    weights = torch.cat([model.get_parameter(f"{i}.weight").detach().flatten() for i in (0, 2, 4)])
    schedule = flipout.OneShot(0.75, 40, at=0)
    pruner = flipout.Pruner(model, optimizer, criterion=lambda weight: -weight.abs(), schedule=schedule)
    kept = torch.cat([mask.flatten() for mask in pruner.masks.values()])
    assert int(kept.sum()) == 88
    assert weights[kept].abs().max() <= weights[~kept].abs().min()
    train(model, optimizer, 40)
    assert pruner.nonzero == 88


def test_floors_hold_while_the_total_stays_exact() -> None:
    for floor, least in ((5, [5, 5, 5]), (0.1, [20, 13, 4])):
        model = mlp()
        optimizer = sgd(model)
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.88, steps=40, floor=floor)

        def check(pruner: flipout.Pruner = pruner, least: list[int] = least) -> None:
            assert all(weight.kept >= n for weight, n in zip(pruner.weights, least, strict=True))

        train(model, optimizer, 40, after=check)
        assert pruner.nonzero == 42


def test_a_layer_that_dies_is_named_once() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("4.weight").mul_(1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    with pytest.warns(flipout.DeadLayerWarning, match=r"^4\.weight .*floor=") as caught:
        train(model, optimizer, 20)
    assert len(caught) == 1
    assert pruner.weights[2].kept == 0
    assert pruner.nonzero == 35


def test_layers_that_die_together_are_one_warning() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(1e-6)
        model.get_parameter("4.weight").mul_(1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    schedule = flipout.OneShot(0.9, 20, at=0.5)
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20, schedule=schedule)
    with pytest.warns(flipout.DeadLayerWarning, match=r"2\.weight, 4\.weight .*10") as caught:
        train(model, optimizer, 20)
    assert len(caught) == 1


@pytest.mark.parametrize("schedule", ["paper", flipout.Cubic, partial(flipout.Geometric, prunings=3), None])
def test_ways_to_give_a_schedule(schedule: Any) -> None:
    for method in ("flipout", "magnitude", "random", "magnitude-uncertainty"):
        model = mlp()
        optimizer = sgd(model)
        pruner = make(method, model, optimizer, schedule=schedule)
        train(model, optimizer, 40)
        assert pruner.nonzero == 35
    model = mlp()
    exact = flipout.Geometric.paper(0.9, 40)
    assert flipout.PaperFlipOut(model, sgd(model), sparsity=0.9, steps=40, schedule=exact).schedule is exact


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
@pytest.mark.parametrize("change", ["float64", "bfloat16", "channels_last"])
def test_every_method_in_other_types_and_layouts(method: str, change: str) -> None:
    model = convnet()
    if change == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch lacks the annotation
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(change, torch.float32)
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = [(x.to(dtype), y) for x, y in batches(20, shape=(1, 6, 6))]
    options = {"batches": data[:1], "loss_fn": cross_entropy} if method == "snip" else {}
    pruner = flipout.METHODS[method](model, optimizer, sparsity=0.8, steps=20, **options)
    for x, y in data:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        if isinstance(pruner, flipout.HoyerSquare):
            loss = loss + pruner.penalty()
        loss.backward()
        optimizer.step()
        assert_masked(pruner)
    if method not in ("dense", "keep-zeros"):
        assert pruner.nonzero == round(pruner.prunable * 0.2)


def test_a_high_power_ranks_as_it_should() -> None:
    """With no flips the ranking is the magnitude's, whatever p; in float32 most scores would be 0."""
    masks = []
    for p in (2.0, 60.0):
        model = mlp()
        schedule = flipout.OneShot(0.5, 4, at=0)
        masks.append(
            flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=4, p=p, noise=0, schedule=schedule).masks
        )
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_a_default_device_does_not_matter() -> None:
    model = mlp()
    optimizer = sgd(model)
    with torch.device("meta"):
        pruner = flipout.MagnitudeUncertainty(
            model, optimizer, sparsity=0.5, steps=4, schedule=flipout.OneShot(0.5, 4, at=0), noise=1.0
        )
    assert pruner.nonzero == 176

"""Scores: integers and high powers are ranked exactly, and a criterion that misbehaves is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.criteria import elementwise, flip_saliency
from flipout.ranking import smallest
from tests.helpers import mlp, sgd, train


def build(criterion: Any, **options: Any) -> flipout.Pruner:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.5, 10), **options)
    train(model, optimizer, 10)
    return pruner


@pytest.mark.parametrize("start", [0, 2**24, 2**53, -(2**53) - 50, 2**62, -(2**62)])
def test_integer_scores_are_ranked_exactly(start: int) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    tensors = [start + order[:25], start + order[25:]]
    masks = [torch.ones_like(tensor, dtype=torch.bool) for tensor in tensors]
    for count in (1, 20, 39):
        chosen = smallest(lambda i: tensors[i], masks, count, dtype=torch.int64)
        assert torch.equal(torch.cat(chosen), order < count)


@pytest.mark.parametrize("options", [{}, {"scope": "layer"}, {"floor": 3}], ids=str)
def test_a_criterion_of_integers(options: dict[str, Any]) -> None:
    """Above 2^24, where float32 has gaps."""
    torch.manual_seed(0)
    places = {shape: torch.randperm(shape[0] * shape[1]).view(shape) for shape in [(16, 12), (8, 16), (4, 8)]}

    def criterion(weight: Tensor) -> Tensor:
        return 2**40 + places[weight.shape[0], weight.shape[1]]

    pruner = build(criterion, **options)
    assert pruner.nonzero == 176
    for weight in pruner.weights:
        place, kept = places[weight.parameter.shape[0], weight.parameter.shape[1]], weight.kept
        assert torch.equal(weight.mask, place >= weight.mask.numel() - kept), weight.name


@pytest.mark.parametrize("p", [4.5, 8.0, 400.0, 1e300])
def test_high_powers_do_not_underflow(p: float) -> None:
    weights = torch.logspace(-30, 1, 200)[torch.randperm(200)]
    flips = torch.randint(0, 50, (200,))
    weights[:3] = 0.0
    exact = weights.double().abs().log() - (flips + 1).double().log() / p  # zeros are lowest
    scores = flip_saliency(weights, flips, p=p)
    assert torch.isfinite(scores).all()
    assert torch.equal(scores[3:].argsort(), exact[3:].argsort())
    assert scores[:3].max() < scores[3:].min()
    assert len(scores.unique()) == 198


@pytest.mark.parametrize("compile", [False, True])
def test_flipout_with_a_high_power(compile: bool) -> None:  # noqa: A002
    """So high that the flips decide nothing: the smallest weights go, none of them for its place in the tensor."""
    weights = nn.ParameterList([nn.Parameter(torch.randn(30, 20) * 1e-3)])
    with torch.no_grad():
        weights[0][0, 0] = 0.0
    optimizer = torch.optim.SGD(weights, lr=0.0)
    pruner = flipout.PaperFlipOut(
        weights, optimizer, sparsity=0.5, steps=4, p=400, include="*", schedule=flipout.OneShot(0.5, 4), compile=compile
    )
    magnitudes = weights[0].detach().abs().clone()
    for _ in range(4):
        optimizer.step()
    assert magnitudes[pruner.masks["0"]].min() >= magnitudes[~pruner.masks["0"]].max()


@pytest.mark.parametrize("compile", [False, True])
def test_a_criterion_that_changes_the_weight_is_refused(compile: bool) -> None:  # noqa: A002
    @elementwise
    def careless(weight: Tensor) -> Tensor:
        return weight.abs_()

    with pytest.raises(RuntimeError, match=r"careless changes weight of 0\.weight"):
        build(careless, compile=compile)


def test_a_criterion_that_changes_a_statistic_is_refused() -> None:
    def careless(weight: Tensor, grad: Tensor) -> Tensor:
        return weight.abs() * grad.mul_(2)

    with pytest.raises(RuntimeError, match="careless changes grad"):
        build(careless)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, TypeError, r"None for 0\.weight"),
        (1.0, TypeError, "float"),
        ([1.0, 2.0], TypeError, "list"),
        (torch.tensor(1.0), ValueError, r"shape \(\) for 0\.weight"),
        (torch.ones(16, 12, dtype=torch.complex64), TypeError, "complex"),
        (torch.ones(16, 12, device="meta"), ValueError, r"meta for 0\.weight"),
    ],
    ids=str,
)
def test_what_a_criterion_may_return(returned: Any, error: type[Exception], message: str) -> None:
    def mistaken(weight: Tensor) -> Any:
        return returned

    with pytest.raises(error, match=f"mistaken .*{message}"):
        build(mistaken)

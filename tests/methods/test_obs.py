"""Optimal Brain Surgeon in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import flipout
from flipout.statistics import InverseFisher
from tests.helpers import assert_masked, cross_entropy, fresh, mlp, sgd, train
from tests.shrinking.perceptrons import EXAMPLE, STEPS, layers, pruned, shapes, steps


def one_shot(**options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    return fresh("obs", sparsity=0.5, schedule=flipout.OneShot(0.5, 40, 0.5), **options)


def test_an_event_prunes_the_lowest_saliencies_and_changes_the_others() -> None:
    model, optimizer, pruner = one_shot(block=7, gradients=5)
    train(model, optimizer, 19)
    seen: dict[str, Any] = {}

    def before() -> None:
        for weight in pruner.weights:
            statistic = weight.statistics["inverse_fisher"]
            assert isinstance(statistic, InverseFisher)
            theta = weight.local.detach().clone()
            seen[weight.name] = theta, theta.square() / (2 * statistic.value(theta, 20)), copy.deepcopy(statistic)

    pruner.stepped = before  # type: ignore[method-assign]
    train(model, optimizer, 20, skip=19)
    limit = torch.cat([scores.flatten() for _, scores, _ in seen.values()]).sort().values[175]
    for name, (theta, scores, statistic) in seen.items():
        mask = pruner.masks[name]
        assert torch.equal(mask, scores > limit)
        expected = torch.where(mask, theta + statistic.compensation(theta, mask), 0)
        torch.testing.assert_close(model.get_parameter(name).detach(), expected)
        assert not torch.equal(model.get_parameter(name)[mask], theta[mask])
    assert pruner.nonzero == 176


def test_the_compensation_helps() -> None:
    """On a quadratic loss of a linear layer, whose Hessian is block-diagonal with blocks of one row."""
    torch.manual_seed(0)
    inputs = torch.randn(200, 10) @ torch.randn(10, 10)
    losses = []
    for surgeon in (True, False):
        model = torch.nn.Linear(10, 6, bias=False)
        torch.nn.init.orthogonal_(model.weight, generator=torch.Generator().manual_seed(1))
        target = inputs @ model.weight.detach().T + 0.1 * torch.randn(
            200, 6, generator=torch.Generator().manual_seed(2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        schedule = flipout.OneShot(0.5, 101, 1.0)
        options: dict[str, Any] = {"block": 10, "gradients": 100, "damping": 1e-3} if surgeon else {}
        kind = flipout.OptimalBrainSurgeon if surgeon else flipout.GlobalMagnitude
        pruner = kind(model, optimizer, sparsity=0.5, steps=101, schedule=schedule, **options)
        for step in range(101):
            optimizer.zero_grad()
            pick = torch.randint(200, (1,), generator=torch.Generator().manual_seed(step))
            (model(inputs[pick]) - target[pick]).square().sum().backward()
            optimizer.step()
        assert pruner.nonzero == 30
        losses.append((model(inputs) - target).square().mean().item())
    assert losses[0] < 0.7 * losses[1]


@pytest.mark.parametrize("granularity", ["weight", (4, 1), "2:4"])
def test_counts_are_exact_for_any_unit(granularity: Any) -> None:
    model, optimizer, pruner = fresh("obs", sparsity=0.5, granularity=granularity)
    train(model, optimizer, 40, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 176


def test_it_is_resumed_bit_for_bit() -> None:
    model, optimizer, pruner = fresh("obs")
    train(model, optimizer, 11)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    train(model, optimizer, 40, skip=11)
    again, its_optimizer, its_pruner = fresh("obs")
    for thing, state in zip((again, its_optimizer, its_pruner), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    train(again, its_optimizer, 40, skip=11)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::flipout.DeadLayerWarning")
def test_a_network_that_is_shrunk_after_the_last_pruning_is_trained_and_resumed() -> None:
    parts = pruned(method=flipout.OptimalBrainSurgeon)
    model, _, pruner = parts
    steps(parts, 0, 25)
    assert pruner.finished
    pruner.shrink(EXAMPLE)
    assert shapes(model) != shapes(layers())
    with pruner.expanded():
        saved = copy.deepcopy([part.state_dict() for part in parts])
    steps(parts, 25, STEPS)
    again = pruned(method=flipout.OptimalBrainSurgeon)
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)  # type: ignore[attr-defined]
    steps(again, 25, STEPS)
    pruner.expand()
    again[2].expand()
    assert shapes(model) == shapes(layers())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True))
    assert_masked(pruner)


@pytest.mark.filterwarnings("ignore::flipout.DeadLayerWarning")
def test_the_inverse_fisher_of_a_shrunk_network_is_read_in_the_expanded_one() -> None:
    parts = pruned(method=flipout.OptimalBrainSurgeon)
    pruner = parts[2]
    steps(parts, 0, STEPS)
    expected = pruner.statistics["inverse_fisher"]
    pruner.shrink(EXAMPLE)
    with pytest.raises(ValueError, match="expanded"):
        pruner.statistics["inverse_fisher"]
    with pruner.expanded():
        found = pruner.statistics["inverse_fisher"]
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_an_event_leaves_no_inverse_in_memory() -> None:
    model, optimizer, pruner = one_shot()
    train(model, optimizer, 20)
    assert pruner.finished
    assert all(vars(weight.statistics["inverse_fisher"])["_read"] is None for weight in pruner.weights)
    pruner._farewell.detach()


@pytest.mark.parametrize("options", [{"block": 0}, {"gradients": 0}, {"damping": 0.0}])
def test_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        flipout.OptimalBrainSurgeon(model := mlp(), sgd(model), sparsity=0.5, steps=10, **options)


def test_second_chances_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="second_chances"):
        fresh("obs", second_chances=True)


def test_a_network_without_gradients_is_pruned_by_magnitude() -> None:
    model = mlp()
    sizes = torch.cat([model.get_parameter(f"{i}.weight").detach().abs().flatten() for i in (0, 2, 4)])
    pruner = flipout.OptimalBrainSurgeon(
        model, sgd(model), sparsity=0.5, steps=10, schedule=flipout.OneShot(0.5, 10, 0.0)
    )
    masks = torch.cat([mask.flatten() for mask in pruner.masks.values()])
    assert torch.equal(masks, sizes > sizes.sort().values[175])
    assert cross_entropy(model(torch.zeros(1, 12)), torch.zeros(1, dtype=torch.long)).isfinite()

"""RigL and GraNet: exact counts, the weights that go and those that come, on real data, resumed."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp, sgd, train
from tests.methods.digits import accuracy_of

RIGL: list[dict[str, Any]] = [{"distribution": "erk"}, {"distribution": "uniform"}, {"distribution": "global"}]


def watched(method: str, steps: int = 60, **options: Any) -> tuple[flipout.Pruner, list[dict[str, Any]]]:
    """Train, and note for each event the masks and weights before and after it, and the gradients of its step."""
    model = mlp()
    optimizer = sgd(model, lr=0.05)
    pruner = make(method, model, optimizer, steps=steps, **options)
    notes: list[dict[str, Any]] = []
    original = pruner.prune
    gradients: list[Tensor] = []

    def prune(pruning: Any) -> None:
        note: dict[str, Any] = {
            "before": [weight.mask.clone() for weight in pruner.weights],
            "weights": [weight.parameter.detach().clone() for weight in pruner.weights],
            "gradients": [grad.abs() for grad in gradients],
        }
        original(pruning)
        notes.append({**note, "after": [weight.mask.clone() for weight in pruner.weights], "event": pruner.events[-1]})

    pruner.prune = prune  # type: ignore[method-assign]
    for x, y in batches(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        gradients[:] = [weight.parameter.grad.clone() for weight in pruner.weights if weight.parameter.grad is not None]
        optimizer.step()
        assert_masked(pruner)
    assert pruner.finished
    return pruner, notes


def swap(kept: Tensor, weight: Tensor, pruned: Tensor, gradient: Tensor, number: int) -> Tensor:
    """The mask after the `number` smallest kept weights made room for the pruned ones with the largest gradients."""
    mask = kept.flatten().clone()
    lowest = sorted((float(weight.flatten()[i].abs()), i) for i in kept.flatten().nonzero().flatten().tolist())
    steepest = sorted((-float(gradient.flatten()[i]), i) for i in pruned.flatten().nonzero().flatten().tolist())
    mask[[i for _, i in lowest[:number]]] = False
    mask[[i for _, i in steepest[:number]]] = True
    return mask.view_as(kept)


@pytest.mark.parametrize("options", [{"distribution": "erk"}, {"distribution": "uniform"}, {"scope": "layer"}])
def test_rigl_swaps_in_each_layer(options: dict[str, Any]) -> None:
    pruner, notes = watched("rigl", sparsity=0.8, updates=9, **options)
    assert len(notes) == 9
    numbers = [int(mask.sum()) for mask in notes[0]["before"]]
    assert sum(numbers) == 70
    assert numbers == ([31, 26, 13] if options == {"distribution": "erk"} else [38, 26, 6])
    for i, note in enumerate(notes):
        share = 0.3 * (1 + math.cos(math.pi * i / 9)) / 2
        grown = 0
        for layer in range(3):
            before, after = note["before"][layer], note["after"][layer]
            number = min(round(share * numbers[layer]), before.numel() - numbers[layer])
            expected = swap(before, note["weights"][layer], ~before, note["gradients"][layer], number)
            assert torch.equal(after, expected)
            assert int(after.sum()) == numbers[layer]
            grown += number
        assert note["event"].grown == grown
        assert note["event"].nonzero == 70
    assert notes[0]["event"].grown > 0
    assert pruner.nonzero == 70


def test_rigl_over_the_whole_network_is_the_rule_of_the_example() -> None:
    _, notes = watched("rigl", sparsity=0.8, updates=9, distribution="global")
    for i, note in enumerate(notes):
        number = round(70 * 0.3 * (1 + math.cos(math.pi * i / 9)) / 2)
        before, weights, gradients = (
            torch.cat([tensor.flatten() for tensor in note[key]]) for key in ("before", "weights", "gradients")
        )
        expected = swap(before, weights, ~before, gradients, number)
        assert torch.equal(torch.cat([mask.flatten() for mask in note["after"]]), expected)


def test_rigl_starts_at_random_places_in_the_right_numbers() -> None:
    starts = []
    for seed in (0, 0, 1):
        model = mlp()
        pruner = flipout.RigL(model, sgd(model), sparsity=0.8, steps=40, seed=seed)
        assert pruner.nonzero == 70
        starts.append(torch.cat([mask.flatten() for mask in pruner.masks.values()]))
        # 28 + 24 + 12 sides of the three layers share 70 weights.
        assert [weight.kept for weight in pruner.weights] == [31, 26, 13]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_weights_that_are_loaded_after_random_masks_are_fine() -> None:
    model, other = mlp(), mlp(1)
    optimizer = sgd(model)
    pruner = flipout.RigL(model, optimizer, sparsity=0.8, steps=10)
    model.load_state_dict(other.state_dict())
    train(model, optimizer, 10, after=lambda: assert_masked(pruner))


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_granet_prunes_to_the_count_and_swaps_a_share_of_what_is_left(scope: str) -> None:
    pruner, notes = watched("granet", sparsity=0.9, scope=scope, schedule=flipout.Cubic(0.9, 60, prunings=9))
    plan = [pruning.nonzero or 0 for pruning in pruner.plan()]
    for i, (note, keep) in enumerate(zip(notes, plan, strict=True)):
        before = torch.cat([mask.flatten() for mask in note["before"]])
        weights = torch.cat([weight.flatten() for weight in note["weights"]]).abs()
        left = note["before"]
        if scope == "global":
            flat = torch.zeros_like(before)
            flat[torch.where(before, weights, -1).sort(stable=True).indices[-keep:]] = True
            left = [part.view_as(mask) for part, mask in zip(flat.split([192, 128, 32]), left, strict=True)]
        share, grown = 0.5 * (1 + math.cos(math.pi * i / 9)) / 2, 0
        for layer in range(3):
            before, after = note["before"][layer], note["after"][layer]
            if scope == "layer":
                kept = int(after.sum())
                ranked = torch.where(before, note["weights"][layer].abs(), -1).flatten().sort(stable=True).indices
                mask = torch.zeros_like(before).flatten()
                mask[ranked[-kept:]] = True
                left[layer] = mask.view_as(before)
            number = min(round(share * int(left[layer].sum())), int((~before).sum()))
            expected = swap(left[layer], note["weights"][layer], ~before, note["gradients"][layer], number)
            assert torch.equal(after, expected)
            grown += number
        assert (note["event"].nonzero, note["event"].grown) == (keep, grown)
    assert sum(note["event"].grown for note in notes) > 50
    assert pruner.nonzero == 35


@pytest.mark.parametrize("method", ["rigl", "granet"])
def test_it_regrows_until_the_last_event(method: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer)
    assert not pruner.permanent
    train(model, optimizer, 40, after=lambda: None)
    assert pruner.permanent
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    train(model, optimizer, 20)
    assert all(torch.equal(mask, pruner.masks[name]) for name, mask in masks.items())


@pytest.mark.parametrize(("method", "options"), [*(("rigl", options) for options in RIGL), ("granet", {})])
def test_floors_hold(method: str, options: dict[str, Any]) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, sparsity=0.85, steps=60, floor=0.12, **options)

    def check() -> None:
        assert_masked(pruner)
        assert all(weight.kept >= floor > 0 for weight, floor in zip(pruner.weights, pruner.floors, strict=True))

    train(model, optimizer, 60, after=check)
    assert pruner.nonzero == 53


@pytest.mark.parametrize(("method", "options"), [*(("rigl", options) for options in RIGL), ("granet", {})])
def test_resuming_is_bit_exact(method: str, options: dict[str, Any]) -> None:
    def attached(seed: int) -> tuple[Any, torch.optim.Optimizer, flipout.Pruner]:
        model = mlp(seed)
        optimizer = sgd(model)
        return model, optimizer, make(method, model, optimizer, steps=60, **options)

    model, optimizer, pruner = attached(0)
    train(model, optimizer, 23)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    train(model, optimizer, 60, skip=23)
    other, other_optimizer, other_pruner = attached(1)
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    other_pruner.load_state_dict(saved[2])
    train(other, other_optimizer, 60, skip=23)
    assert other_pruner.events == pruner.events
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_state_notices_other_settings() -> None:
    def attached(**options: Any) -> flipout.Pruner:
        model = mlp()
        return flipout.RigL(model, sgd(model), sparsity=0.5, steps=40, **options)

    state = attached().state_dict()
    with pytest.raises(ValueError, match=r"share: 0\.3 .*0\.2"):
        attached(share=0.2).load_state_dict(state)
    with pytest.raises(ValueError, match=r"distribution: erk .*uniform"):
        attached(distribution="uniform").load_state_dict(state)


def test_a_gradient_that_is_not_finite_is_an_error_that_names_its_layer() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.0)
    flipout.RigL(model, optimizer, sparsity=0.5, steps=40, updates=30)
    weight = model.get_parameter("2.weight")
    cross_entropy(model(torch.randn(8, 12)), torch.randint(4, (8,))).backward()
    assert weight.grad is not None
    weight.grad.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"2\.weight has NaN.* gradients"):
        optimizer.step()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rigl", {"share": 1.5}, "share is 1.5"),
        ("rigl", {"until": 0.0}, "until is 0.0"),
        ("rigl", {"updates": 0}, "prunings is 0"),
        ("rigl", {"distribution": "er"}, "distribution is 'er'"),
        ("rigl", {"distribution": "global", "scope": "layer"}, "scope='layer'"),
        ("granet", {"share": -0.1}, "share is -0.1"),
    ],
)
def test_invalid_options(method: str, options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        make(method, model, sgd(model), **options)


@pytest.mark.parametrize(("method", "options"), [*(("rigl", options) for options in RIGL), ("granet", {})])
def test_real_digits(method: str, options: dict[str, Any]) -> None:
    counts: set[int] = set()
    assert accuracy_of(method, lambda pruner: counts.add(pruner.nonzero), sparsity=0.9, **options) > 0.8
    assert (counts == {740}) == (method == "rigl")
    assert 740 in counts


def test_granet_has_a_cubic_schedule_unless_another_is_given() -> None:
    model = mlp()
    pruner = flipout.GraNet(model, sgd(model), sparsity=0.9, steps=1000)
    assert pruner.schedule == flipout.Cubic(0.9, 1000)
    pruner.remove()
    given = flipout.Geometric(0.9, 1000)
    assert flipout.GraNet(model, sgd(model), sparsity=0.9, steps=1000, schedule=given).schedule is given

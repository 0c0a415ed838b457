"""Whole channels in a training: through residuals and heads, with counts, resume, compaction and errors."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout import export
from flipout_lab.models.model_catalogue import MODELS
from tests.helpers import sgd

SHAPE = (3, 16, 16)


def resnet(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS["resnet18"].make(SHAPE, 10, 0.0625)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(4, *SHAPE, generator=generator), torch.randint(10, (4,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for each in range(number):
        step(model, optimizer, each)


@pytest.mark.parametrize("method", [flipout.FlipOut, flipout.GlobalMagnitude])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_a_residual_network_loses_whole_channels_and_compacts_to_them(
    method: type[flipout.Pruner], scope: Literal["global", "layer"]
) -> None:
    model = resnet()
    optimizer = sgd(model, lr=0.01)
    pruner = method(model, optimizer, sparsity=0.7, steps=16, granularity="channel", scope=scope)  # type: ignore[call-arg]
    for number in range(16):
        step(model, optimizer, number)
        due = [pruning.nonzero for pruning in pruner.plan() if pruning.step <= number + 1]
        assert pruner.nonzero <= (due[-1] or 0) if due else pruner.prunable
        for mask in pruner.masks.values():  # a product of outputs and inputs
            kept = mask.flatten(2).all(2) if mask.ndim > 2 else mask
            assert torch.equal(mask.any(), kept.any())
            assert torch.equal(kept, kept.any(1, keepdim=True) & kept.any(0, keepdim=True))
    asked = pruner.plan()[-1].nonzero
    assert asked is not None
    assert 0.9 * asked < pruner.nonzero <= asked
    assert all(weight.kept for weight in pruner.weights)
    small: Any = export.compact(model, torch.randn(2, *SHAPE))
    assert small.compaction.weights == (pruner.prunable, pruner.nonzero)  # nothing but kept weights is left
    x = torch.randn(5, *SHAPE)
    torch.testing.assert_close(small(x), model.eval()(x), rtol=1e-4, atol=1e-4)


def test_resume_is_bit_exact_with_channels() -> None:
    options: dict[str, Any] = {"sparsity": 0.6, "steps": 16, "granularity": "channel"}
    model = resnet()
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.FlipOut(model, optimizer, **options)
    for number in range(16):
        if number == 6:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
        step(model, optimizer, number)
    again = resnet(1)
    resumed = sgd(again, lr=0.01)
    other = flipout.FlipOut(again, resumed, **options)
    for thing, state in zip((again, resumed, other), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    for number in range(6, 16):
        step(again, resumed, number)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_copy_goes_on_like_the_original() -> None:
    model = resnet()
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.6, steps=12, granularity="channel")
    for number in range(4):
        step(model, optimizer, number)
    other, twin, copied = copy.deepcopy((model, optimizer, pruner))
    for number in range(4, 12):
        step(model, optimizer, number)
        step(other, twin, number)
    assert all(torch.equal(a, b) for a, b in zip(pruner.masks.values(), copied.masks.values(), strict=True))


def test_channels_of_an_excluded_layer_stay() -> None:
    model = resnet()
    optimizer = sgd(model, lr=0.01)
    first = next(name for name, _ in model.named_parameters()).removesuffix(".weight")
    pruner = flipout.GlobalMagnitude(
        model, optimizer, sparsity=0.3, steps=8, granularity="channel", exclude=first, floor=0.05
    )
    for number in range(8):
        step(model, optimizer, number)
    stem = model.get_parameter(f"{first}.weight")
    assert (stem != 0).all()
    assert pruner.nonzero < pruner.prunable
    assert all(weight.kept >= 0.05 * weight.parameter.numel() for weight in pruner.weights)


def test_a_sparsity_that_channels_cannot_reach_stops_the_first_step() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=10, granularity="channel")
    with pytest.raises(ValueError, match="cannot keep fewer than 16 weights"):
        _train(model, optimizer)
    pruner.remove()


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden if hidden.sum() > 0 else -hidden)  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_followed_is_an_error_with_the_reason() -> None:
    model = Untraceable()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10, granularity="channel")
    with pytest.raises(ValueError, match=r"granularity='channel'.*depends on data, at test_channels_in_training"):
        _train(model, optimizer)
    pruner.remove()


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()


def test_what_is_not_followed_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.3, steps=10, granularity="channel")
    with pytest.warns(flipout.ChannelWarning, match=r"0\.weight.*1 \(layer_norm"):
        _train(model, optimizer)
    assert "1 (layer_norm" in str(pruner.summary())
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.ChannelWarning)
        for _ in range(9):
            _train(model, optimizer)
    assert pruner.masks["0.weight"].all()
    assert not pruner.masks["2.weight"].all()


def test_the_trial_draws_no_random_numbers_of_the_training() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = sgd(model)
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.3, steps=10, granularity="channel")
    model(torch.randn(4, 8)).sum().backward()
    state = torch.get_rng_state()
    optimizer.step()
    assert torch.equal(torch.get_rng_state(), state)


def test_pruning_before_the_first_step_is_refused() -> None:
    model = resnet()
    with pytest.raises(ValueError, match="before the first step"):
        flipout.GlobalMagnitude(
            model,
            sgd(model),
            sparsity=0.5,
            steps=10,
            granularity="channel",
            schedule=lambda sparsity, steps: flipout.OneShot(sparsity, steps, at=0),
        )


def test_snip_prunes_channels_before_the_first_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    batch = torch.randn(8, 8), torch.randint(4, (8,))
    pruner = flipout.SNIP(
        model,
        sgd(model),
        sparsity=0.6,
        steps=10,
        granularity="channel",
        batches=[batch],
        loss_fn=nn.functional.cross_entropy,
        rounds=2,
    )
    asked = pruner.plan()[-1].nonzero
    assert asked is not None
    assert 0.8 * asked < pruner.nonzero <= asked
    assert not model._forward_pre_hooks


class Stream(nn.Module):
    """A residual sum, where the order of the channels decides which ones a floor needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.back = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 10, 1), nn.Conv2d(10, 12, 1)
        self.hidden, self.last = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.first(x).relu()
        stream = (stream + self.back(self.inner(stream).relu())).relu()
        return self.last(self.hidden(stream.mean((2, 3))).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_floors_hold_and_the_plan_is_reached(seed: int, shrinks: bool) -> None:
    torch.manual_seed(seed)
    model = Stream()
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.82, steps=24, granularity="channel", floor=0.1)
    for number in range(24):
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if shrinks and number in (8, 14):
            pruner.shrink(x)
    pruner.expand()
    for event, planned in zip(pruner.events, pruner.plan(), strict=True):
        assert planned.nonzero is not None
        assert event.nonzero <= planned.nonzero
    assert all(weight.kept >= floor for weight, floor in zip(pruner.weights, pruner.floors, strict=True))


def test_a_floor_that_channels_cannot_keep_is_named() -> None:
    model = Stream()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.89, steps=24, granularity="channel", floor=0.1)
    model(torch.randn(4, 3, 5, 5)).sum().backward()
    with pytest.raises(ValueError, match="floor="):
        optimizer.step()
    pruner.remove()


def test_nan_scores_stop_with_the_name_of_the_layer() -> None:
    model = resnet()
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.6, steps=12, granularity="channel")
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            with torch.no_grad():
                layer.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="weight has NaN"):
        steps(model, optimizer, 12)
    pruner.remove()


@pytest.mark.parametrize("method", [flipout.GlobalMagnitude, flipout.FlipOut])
def test_a_network_that_is_shrunk_while_channels_are_pruned_trains_the_same(method: type[flipout.Pruner]) -> None:
    results = []
    for shrinks in (False, True):
        model = resnet().double()
        optimizer = sgd(model, lr=0.01)
        pruner = method(model, optimizer, sparsity=0.7, steps=16, granularity="channel")  # type: ignore[call-arg]
        x = torch.randn(2, *SHAPE, dtype=torch.float64)
        for number in range(16):
            if shrinks and number in (5, 12) and pruner.permanent:
                pruner.shrink(x)
                assert sum(weight.parameter.numel() for weight in pruner.weights) < pruner.prunable
            generator = torch.Generator().manual_seed(number)
            data = torch.randn(4, *SHAPE, generator=generator).double(), torch.randint(10, (4,), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()
        pruner.expand()
        # The norms of removed channels stay as they were when these left.
        kept = [parameter.detach() for parameter in model.parameters() if parameter.ndim > 1]
        results.append((pruner.masks, [*kept, model.eval()(torch.ones(2, *SHAPE, dtype=torch.float64)).detach()]))
    (masks, weights), (shrunk_masks, shrunk_weights) = results
    assert all(torch.equal(masks[name], shrunk_masks[name]) for name in masks)
    for one, other in zip(weights, shrunk_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


class Grouped(nn.Module):
    """A convolution with groups, of which one may be left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.last, self.head = nn.Conv2d(8, 6, 1), nn.Linear(6, 4)
        with torch.no_grad():
            self.middle.weight[2:] *= 0.02  # the groups but the first are pruned early
            self.first.weight[2:] *= 0.02
            self.last.weight[:, 2:] *= 0.02

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.middle(self.first(x).relu()).relu()).relu().mean((2, 3)))  # type: ignore[no-any-return]


GROUPED: dict[str, Any] = {"sparsity": 0.75, "steps": 30, "granularity": "channel", "compile": False}


def train_grouped(parts: Any, first: int, last: int, *, shrinks: bool) -> list[dict[str, Tensor]]:
    """Train, with shrinks at every second step; return the masks of every step."""
    model, optimizer, pruner = parts
    masks = []
    for number in range(first, last):
        x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
        optimizer.step()
        if shrinks and number % 2 and number > 3:
            pruner.shrink(x)
        with pruner.expanded():
            masks.append({name: mask.clone() for name, mask in pruner.masks.items()})
    return masks


def grouped(scope: Any) -> Any:
    model = Grouped().double()
    optimizer = sgd(model, lr=0.02)
    return model, optimizer, flipout.GlobalMagnitude(model, optimizer, scope=scope, **GROUPED)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_channels_are_those_of_the_original_network_when_one_group_is_left(scope: str) -> None:
    expected = train_grouped(grouped(scope), 0, 30, shrinks=False)
    parts = model, _, pruner = grouped(scope)
    groups, saved = set(), None
    masks: list[dict[str, Tensor]] = []
    for number in range(30):
        masks += train_grouped(parts, number, number + 1, shrinks=True)
        groups.add(model.middle.groups)
        if saved is None and model.middle.groups == (1 if scope == "global" else 4):
            with pruner.expanded():
                saved = number + 1, copy.deepcopy([part.state_dict() for part in parts])
    assert scope == "layer" or 1 in groups
    for one, other in zip(expected, masks, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert saved is not None
    step, states = saved
    again = grouped(scope)
    for part, state in zip(again, states, strict=True):
        part.load_state_dict(state)
    for one, other in zip(expected[step:], train_grouped(again, step, 30, shrinks=True), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)

"""Budgets for whole channels: multiply-adds, parameters and latency, in a training and in one shot."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.units.latency import LatencyCurve
from tests.helpers import sgd


class Residual(nn.Module):
    """Early channels cost few weights and many multiply-adds, late ones the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.inner, self.back = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 1)
        self.deep, self.hidden, self.head = nn.Conv2d(16, 32, 3, 4), nn.Linear(32, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.back(self.inner(x).relu())
        return self.head(self.hidden(self.deep(x).relu().mean((2, 3))).relu())  # type: ignore[no-any-return]


SIZE = (3, 12, 12)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Residual()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        x = torch.randn(4, *SIZE, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def macs(model: nn.Module) -> int:
    """The multiply-adds with weights, counted at each layer of a call."""
    total = 0

    def count(module: Any, args: Any, output: Tensor) -> None:
        nonlocal total
        places = output.shape[2:].numel() if isinstance(module, nn.Conv2d) else 1
        total += module.weight.numel() * places

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model.eval()(torch.zeros(1, *SIZE))
    for hook in hooks:
        hook.remove()
    return total


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


COUNTS = {"macs": macs, "parameters": parameters}


@pytest.mark.parametrize("target", ["macs", "parameters"])
@pytest.mark.parametrize("method", [flipout.FlipOut, flipout.GlobalMagnitude])
def test_a_share_of_a_target_is_met_from_below(method: Any, target: Literal["macs", "parameters"]) -> None:
    model = network()
    optimizer = sgd(model, lr=0.01)
    pruner = method(model, optimizer, sparsity=0.5, steps=16, granularity="channel", target=target)
    train(model, optimizer, 0, 16)
    small = export.compact(model, torch.randn(2, *SIZE))
    count = COUNTS[target]
    left = count(small) / count(model)
    assert 0.45 < left <= 0.5
    assert pruner.events[-1].reached == pytest.approx(1 - left)
    reached = [event.reached or 0 for event in pruner.events]
    for pruning, share in zip(pruner.plan(), reached, strict=True):
        assert share >= (pruning.sparsity or 0)
    title = {"macs": "multiply-adds", "parameters": "parameters"}[target]
    assert f"{reached[-1]:.2%} of the {title}" in str(pruner.summary())
    assert f"{title} pruned" in str(pruner.plan())
    assert f"{reached[-1]:.2%}" in str(pruner.plan())


def test_resume_is_bit_exact_with_a_budget() -> None:
    options: dict[str, Any] = {"sparsity": 0.5, "steps": 16, "granularity": "channel", "target": "macs"}
    parts = model, optimizer, _ = _attached(0, options)
    train(model, optimizer, 0, 6)
    saved = copy.deepcopy([part.state_dict() for part in parts])
    train(model, optimizer, 6, 16)
    again = _attached(1, options)
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    train(again[0], again[1], 6, 16)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True))


def _attached(seed: int, options: dict[str, Any]) -> Any:
    model = network(seed)
    optimizer = sgd(model, lr=0.01)
    return model, optimizer, flipout.FlipOut(model, optimizer, **options)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("target", ["macs", "parameters"])
def test_one_shot_pruning_meets_a_budget(target: Literal["macs", "parameters"], rounds: int) -> None:
    model = network().eval()
    before = COUNTS[target](model)
    batches = [torch.randn(8, *SIZE)]
    report = flipout.prune(model, batches, sparsity=0.5, granularity="channel", target=target, rounds=rounds)
    small = export.compact(model, torch.randn(2, *SIZE))
    assert 0.44 < COUNTS[target](small) / before <= 0.5
    assert {"macs": "multiply-adds", "parameters": "parameters"}[target] in str(report)


def test_floors_by_pattern_hold_under_a_budget() -> None:
    model = network()
    optimizer = sgd(model, lr=0.01)
    floor = {"stem": 0.9, "back*": 8, "*": 0.05}
    pruner = flipout.GlobalMagnitude(
        model, optimizer, sparsity=0.5, steps=12, granularity="channel", target="macs", floor=floor
    )
    train(model, optimizer, 0, 12)
    kept = {weight.name: weight.kept / weight.size for weight in pruner.weights}
    assert kept["stem.weight"] >= 0.9
    assert all(share >= 0.05 for name, share in kept.items() if name != "back.weight")
    assert (pruner.events[-1].reached or 0) >= 0.5


def test_a_budget_that_cannot_be_met_is_named_before_training() -> None:
    model = network()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(
        model, optimizer, sparsity=0.9, steps=10, granularity="channel", target="macs", floor={"inner": 0.9}
    )
    with pytest.raises(ValueError, match=r"multiply-adds.*floor="):
        train(model, optimizer, 0, 1)
    pruner.remove()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "macs"}, "target='macs'.*granularity='channel'"),
        ({"target": "flops", "granularity": "channel"}, "target is 'flops'"),
        ({"floor": {"nothing*": 3}}, "floor=.*nothing.*matches no weight"),
        ({"floor": {"*": 2.0}}, r"floor is 2\.0"),
        ({"sparsity": {"nothing*": 0.5}}, "sparsity=.*nothing.*matches no weight"),
        ({"sparsity": {}}, "sparsity is an empty mapping"),
        ({"sparsity": {"*": 1.5}}, r"sparsity is 1\.5"),
        ({"sparsity": {"*": 0.5}, "granularity": "channel"}, "granularity='channel' takes one sparsity"),
        ({"sparsity": {"*": 0.5}, "dead_first": True}, "dead_first"),
        ({"sparsity": {"stem": 0.99}, "floor": {"stem": 0.5}}, "floor"),
    ],
)
def test_bad_budgets(options: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=message):
        flipout.GlobalMagnitude(model, sgd(model), **{"sparsity": 0.5, "steps": 10, **options})


@pytest.mark.parametrize("granularity", ["weight", "kernel", (4, 1)])
@pytest.mark.parametrize("second_chances", [None, True])
def test_sparsities_by_pattern(granularity: Any, second_chances: bool | None) -> None:
    model = network()
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.GlobalMagnitude(
        model,
        optimizer,
        sparsity={"inner": 0.5, "de*": 0.75, "hidden": 0.25},
        steps=16,
        granularity=granularity,
        second_chances=second_chances,
    )
    train(model, optimizer, 0, 16)
    sparsities = {weight.name: 1 - weight.kept / weight.size for weight in pruner.weights}
    expected = {"inner.weight": 0.5, "deep.weight": 0.75, "hidden.weight": 0.25}
    assert sparsities == pytest.approx(expected, abs=0.01)
    assert [event.nonzero for event in pruner.events] == [pruning.nonzero for pruning in pruner.plan()]


def test_pools_rank_by_themselves() -> None:
    model = network()
    optimizer = sgd(model, lr=0.0)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity={"inner": 0.5, "*": 0.8}, steps=8)
    before = {weight.name: weight.parameter.detach().abs().clone() for weight in pruner.weights}
    train(model, optimizer, 0, 8)
    kept = {name: before[name][mask] for name, mask in pruner.masks.items()}
    gone = {name: before[name][~mask] for name, mask in pruner.masks.items()}
    others = [name for name in before if name != "inner.weight"]
    for pool in (["inner.weight"], others):
        assert max(gone[name].max() for name in pool if gone[name].numel()) <= min(kept[name].min() for name in pool)
    assert kept["inner.weight"].numel() == before["inner.weight"].numel() // 2


@pytest.mark.parametrize("round_to", [4, 8])
@pytest.mark.parametrize("method", [flipout.FlipOut, flipout.GlobalMagnitude])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_layers_keep_multiples(method: Any, scope: str, round_to: int) -> None:
    model = network()
    optimizer = sgd(model, lr=0.01)
    pruner = method(
        model, optimizer, sparsity=0.5, steps=16, granularity="channel", round_to=round_to, scope=scope, target="macs"
    )
    train(model, optimizer, 0, 16)
    small: Any = export.compact(model, torch.randn(2, *SIZE))
    widths = [small.stem.out_channels, small.inner.out_channels, small.deep.out_channels, small.hidden.out_features]
    assert all(width % round_to == 0 for width in widths)
    assert widths != [16, 24, 32, 48]
    assert (pruner.events[-1].reached or 0) >= 0.5


def test_a_width_that_is_no_multiple_stays_or_becomes_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 21), nn.ReLU(), nn.Linear(21, 13), nn.ReLU(), nn.Linear(13, 3))
    flipout.prune(model, [torch.randn(32, 6)], sparsity=0.4, granularity="channel", round_to=4, method="magnitude")
    small: Any = export.compact(model, torch.randn(2, 6))
    for width, whole in ((small[0].out_features, 21), (small[2].out_features, 13)):
        assert width == whole or width % 4 == 0
    assert (small[0].out_features, small[2].out_features) != (21, 13)


def test_a_share_of_the_time_becomes_a_share_of_the_multiply_adds() -> None:
    curve = LatencyCurve(((1, 1), (0.5, 0.8), (0.25, 0.6), (0.1, 0.6)), 3.0)
    assert curve.share_for(1.0) == 1
    assert curve.share_for(0.9) == pytest.approx(0.75)
    assert curve.share_for(0.7) == pytest.approx(0.375)
    assert curve.latency_of(0.375) == pytest.approx(0.7)
    assert curve.latency_of(0.05) == 0.6
    assert LatencyCurve.loaded(curve.saved()) == curve
    with pytest.raises(ValueError, match="latency"):
        curve.share_for(0.5)


def test_a_measured_target_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flipout.units.latency._time_of", lambda model, args, kwargs: _work(model))
    options: dict[str, Any] = {"sparsity": 0.4, "steps": 12, "granularity": "channel", "target": "latency"}
    parts = model, optimizer, pruner = _attached(0, options)
    train(model, optimizer, 0, 2)
    saved = copy.deepcopy([part.state_dict() for part in parts])
    train(model, optimizer, 2, 12)
    assert (pruner.events[-1].reached or 0) == pytest.approx(0.4, abs=0.05)
    assert "latency" in str(pruner.summary())
    monkeypatch.setattr("flipout.units.channels.measure_latency", None)  # nothing is measured again
    again = _attached(1, options)
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    train(again[0], again[1], 2, 12)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True))
    with pytest.raises(ValueError, match="latency"):
        again[2].load_state_dict({**saved[2], "units": "[1, [[2, 2]]]"})


def _work(model: nn.Module) -> float:
    """A time that a constant adds to, as the time of a call does."""
    return 0.2 + macs(model) / 1e6

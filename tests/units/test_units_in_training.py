"""Kernels, blocks and patterns in a training: exact counts, whole units, resume, and what cannot be combined."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.schedules import Geometric
from flipout.units.patterns import highest_of_groups
from tests.helpers import sgd

BLOCKS = ["kernel", (4, 1), (2, 3), (5, 5)]
METHODS = [flipout.FlipOut, flipout.GlobalMagnitude]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        nn.Linear(8 * 16, 12),
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    model(torch.randn(4, 4, 6, 6, generator=generator)).square().mean().backward()
    optimizer.step()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for each in range(number):
        step(model, optimizer, each)


def sparsity_of(granularity: Any) -> float:
    return {"2:4": 0.5, "1:4": 0.75}.get(str(granularity), 0.8)


def is_whole(granularity: Any, mask: Tensor) -> bool:
    """Whether every unit of a mask is kept or pruned as a whole."""
    matrix = mask.flatten(1)
    rows, columns = (1, mask[0, 0].numel()) if granularity == "kernel" else granularity
    return all(
        bool((block == block[0, 0]).all()) for part in matrix.split(rows) for block in part.split(columns, dim=1)
    )


@pytest.mark.parametrize("granularity", BLOCKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_whole_units_and_the_planned_counts(
    granularity: Any, method: type[flipout.Pruner], scope: Literal["global", "layer"]
) -> None:
    model = network()
    optimizer = sgd(model)
    pruner = method(model, optimizer, sparsity=0.8, steps=30, granularity=granularity, scope=scope)  # type: ignore[call-arg]
    plan = pruner.plan()
    asked = Geometric(0.8, 30).plan(pruner.prunable)[-1].nonzero
    assert asked is not None
    assert plan[-1].nonzero is not None
    largest = 25 * (len(pruner.weights) if scope == "layer" else 1)
    assert asked - largest < plan[-1].nonzero <= asked
    for number in range(30):
        step(model, optimizer, number)
        due = [pruning.nonzero for pruning in plan if pruning.step <= number + 1]
        planned = due[-1] if due else pruner.prunable
        assert planned is not None
        if scope == "layer" and granularity == (5, 5):  # too few blocks in a layer of 8 x 8
            assert planned - 25 * 3 < pruner.nonzero <= planned
        else:
            assert pruner.nonzero == planned
        assert all(is_whole(granularity, mask) for mask in pruner.masks.values())
        pruner.check()
    pruner.remove()


@pytest.mark.parametrize("granularity", ["2:4", "1:4"])
@pytest.mark.parametrize("method", METHODS)
def test_patterns_hold_in_every_group_after_every_step(granularity: str, method: type[flipout.Pruner]) -> None:
    model = network()
    optimizer = sgd(model)
    pruner = method(model, optimizer, sparsity=sparsity_of(granularity), steps=30, granularity=granularity)  # type: ignore[call-arg]
    least, seen = int(granularity[0]), set()
    for number in range(30):
        step(model, optimizer, number)
        numbers = set()
        for mask in pruner.masks.values():
            groups = mask.flatten(2) if mask.ndim > 2 else mask[..., None]
            numbers |= set(groups.unflatten(1, (-1, 4)).sum(2).unique().tolist())
        assert len(numbers) == 1
        seen |= numbers
        pruner.check()
    assert seen == set(range(least, 5))
    assert numbers == {least}
    assert all(
        weight.ne(0).eq(mask).all() for weight, mask in zip(_weights(pruner), pruner.masks.values(), strict=True)
    )
    pruner.remove()


def _weights(pruner: flipout.Pruner) -> list[Tensor]:
    return [weight.parameter.detach() for weight in pruner.weights]


@settings(max_examples=60)
@given(st.data())
def test_the_highest_of_every_group(data: st.DataObject) -> None:
    group, axis = data.draw(st.integers(2, 5)), data.draw(st.integers(0, 1))
    number = data.draw(st.integers(1, group))
    shape = [data.draw(st.integers(1, 3)) for _ in range(3)]
    shape[axis] *= group
    scores = torch.randint(-2, 3, shape).float()
    candidates = torch.rand(shape) < 0.8
    marks = highest_of_groups(scores, candidates, axis, group, number)
    lines = (each.movedim(axis, -1).flatten(0, -2) for each in (scores, candidates, marks))
    for row, may, kept in zip(*lines, strict=True):
        for start in range(0, len(row), group):
            places = [i for i in range(start, start + group) if may[i]]
            best = sorted(places, key=lambda i: (float(row[i]), i))[::-1][:number]
            assert {i for i in range(start, start + group) if kept[i]} == set(best)


@pytest.mark.parametrize("granularity", ["kernel", (4, 1), (2, 3), "2:4"])
@pytest.mark.parametrize("method", METHODS)
def test_resume_is_bit_exact(granularity: Any, method: type[flipout.Pruner]) -> None:
    options: dict[str, Any] = {"sparsity": sparsity_of(granularity), "steps": 24, "granularity": granularity}
    model = network()
    optimizer = sgd(model)
    pruner = method(model, optimizer, **options)
    for number in range(24):
        if number == 10:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
        step(model, optimizer, number)
    again = network(1)
    resumed = sgd(again)
    other = method(again, resumed, **options)
    for thing, state in zip((again, resumed, other), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    for number in range(10, 24):
        step(again, resumed, number)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert [event.nonzero for event in pruner.events] == [event.nonzero for event in other.events]


def test_a_state_of_another_granularity_is_refused() -> None:
    model = network()
    state = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.5, steps=20, granularity="kernel").state_dict()
    other = network()
    pruner = flipout.GlobalMagnitude(other, sgd(other), sparsity=0.5, steps=20, granularity=(4, 1))
    with pytest.raises(ValueError, match="granularity"):
        pruner.load_state_dict(state)


@pytest.mark.parametrize("granularity", ["kernel", (4, 1), (2, 3)])
def test_floors_hold_in_whole_units(granularity: Any) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(1e-3)
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.6, steps=20, granularity=granularity, floor=0.25)
    for number in range(20):
        step(model, optimizer, number)
    for weight in pruner.weights:
        assert weight.kept >= 0.25 * weight.parameter.numel()


def test_with_floors_and_second_chances_an_event_keeps_less_by_less_than_a_unit() -> None:
    for floor in (7, 0.1):
        model = network()
        optimizer = sgd(model)
        pruner = flipout.GlobalMagnitude(
            model, optimizer, sparsity=0.85, steps=20, granularity="kernel", floor=floor, second_chances=True
        )
        steps(model, optimizer, 20)
        for event, pruning in zip(pruner.events, pruner.plan(), strict=True):
            assert pruning.nonzero is not None
            assert pruning.nonzero - 9 < event.nonzero <= pruning.nonzero


def test_dead_units_go_first_and_the_lowest_of_them_before_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight")[:4] *= 1e-6  # pruned first: then the inputs 0 to 3 of the second layer are dead
        model.get_parameter("2.weight")[:, :4] = torch.arange(8, 0, -1)[:, None].float()  # the last are the lowest
    optimizer = sgd(model, lr=0.0)
    pruner = flipout.GlobalMagnitude(
        model, optimizer, sparsity=0.4375, steps=10, granularity=(1, 4), dead_first=True, schedule=_two_steps
    )
    for number in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(number))).sum().backward()
        optimizer.step()
    assert not pruner.masks["0.weight"][:4].any()
    assert pruner.masks["2.weight"][:, 4:].all()
    assert pruner.masks["2.weight"][:, 0].tolist() == [True] * 2 + [False] * 6
    assert pruner.nonzero == 72


def test_scores_decide_if_every_unit_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    optimizer = sgd(model, lr=0.0)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10, granularity=(1, 4), dead_first=True)
    every = {number: torch.ones(8, 8, dtype=torch.bool) for number in range(2)}
    monkeypatch.setattr(pruner.dead, "find", lambda *_: every)
    means = torch.cat([parameter.detach().abs().view(-1, 4).mean(1) for parameter in model.parameters()])
    for _ in range(10):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    kept = torch.cat([mask.view(-1, 4)[:, 0] for mask in pruner.masks.values()])
    assert torch.equal(kept, means > means.median())


def _two_steps(sparsity: float, steps: int) -> flipout.Schedule:
    return Geometric(sparsity, steps, prunings=2, window=(0.1, 0.5))


def test_reductions_rank_units_differently() -> None:
    masks = []
    for reduce in ("mean", "sum"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4))
        optimizer = sgd(model, lr=0.0)
        pruner = flipout.GlobalMagnitude(
            model, optimizer, sparsity=0.5, steps=10, granularity="kernel", reduce=reduce, scope="global"
        )
        for number in range(10):
            step(model, optimizer, number)
        masks.append(pruner.masks["0.weight"].sum())
    assert masks[1] > masks[0]  # a sum favours units with many weights


def test_what_units_cannot_do_is_refused_with_the_fix() -> None:
    model = network()
    make: Any = flipout.GlobalMagnitude
    with pytest.raises(ValueError, match=r"granularity='1:3'.*0\.weight \(4\).*exclude="):
        make(model, sgd(model), sparsity=2 / 3, steps=20, granularity="1:3")
    with pytest.raises(ValueError, match=r"sparsity=0\.5"):
        make(model, sgd(model), sparsity=0.9, steps=20, granularity="2:4")
    with pytest.raises(ValueError, match=r"RigL .*granularity='kernel'"):
        flipout.RigL(model, sgd(model), sparsity=0.5, steps=100, granularity="kernel")
    with pytest.raises(ValueError, match=r"DeepR .*granularity='2:4'"):
        flipout.DeepR(model, sgd(model), sparsity=0.5, steps=100, granularity="2:4")
    with pytest.raises(ValueError, match=r"granularity='2:4'.*dead_first"):
        make(model, sgd(model), sparsity=0.5, steps=20, granularity="2:4", dead_first=True)
    with pytest.raises(ValueError, match=r"granularity='channel'.*dead_first"):
        make(model, sgd(model), sparsity=0.5, steps=20, granularity="channel", dead_first=True)
    with pytest.raises(ValueError, match="lower the floor"):
        make(model, sgd(model), sparsity=0.5, steps=20, granularity="2:4", floor=0.9, include="0.weight")
    with pytest.raises(ValueError, match=r"3\.weight has the shape"):
        make(model, sgd(model), sparsity=0.5, steps=20, granularity=(2, 2), include=["0.weight", "3.weight"])


def test_nan_scores_stop_with_the_name_of_the_layer() -> None:
    cases: list[tuple[Any, float, Any]] = [
        *(("kernel", 0.8, "global"), ((2, 3), 0.8, "global"), ((2, 3), 0.8, "layer"), ("2:4", 0.5, "global")),
    ]
    for granularity, sparsity, scope in cases:
        model = network()
        optimizer = sgd(model)
        pruner = flipout.GlobalMagnitude(
            model, optimizer, sparsity=sparsity, steps=20, granularity=granularity, scope=scope
        )
        with torch.no_grad():
            model.get_parameter("2.weight")[0, 0] = torch.nan
        with pytest.raises(FloatingPointError, match=r"weight has NaN or infinite scores"):
            steps(model, optimizer, 20)
        pruner.remove()


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["kernel", (2, 3), "2:4"])
def test_compiled_work_prunes_the_same_units(granularity: Any) -> None:
    masks = []
    for compiled in (False, True):
        model = network()
        optimizer = sgd(model)
        pruner = flipout.FlipOut(
            model, optimizer, sparsity=sparsity_of(granularity), steps=20, granularity=granularity, compile=compiled
        )
        steps(model, optimizer, 20)
        assert pruner.nonzero == pruner.plan()[-1].nonzero
        masks.append(pruner.masks)
    agree = sum(int((masks[0][name] == masks[1][name]).sum()) for name in masks[0])
    assert agree > 0.98 * pruner.prunable  # other rounding may swap units with nearly equal scores

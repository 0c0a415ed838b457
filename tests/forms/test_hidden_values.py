"""Hidden values of pruned weights: their mathematics, and whole trainings against a slow version."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.forms.hidden import enter, leave, set_limits, slowed
from flipout.views.view import whole
from tests.forms.trainings import STEPS, hidden, magnitude
from tests.helpers import batches, cross_entropy, mlp, sgd, train


def slots_for(values: Tensor, mask: Tensor, *, smooth: bool) -> dict[str, Tensor]:
    """The slots of a weight tensor with these hidden values."""
    slots = {"values": torch.zeros_like(values), "threshold": torch.zeros(()), "ceiling": torch.zeros(())}
    set_limits(slots, values, mask, whole(values), smooth=smooth)
    return slots


@given(
    st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=1, max_size=30),
    st.booleans(),
)
def test_leaving_and_entering_gives_the_same_values_back(pairs: list[tuple[float, bool]], smooth: bool) -> None:
    values = torch.tensor([value for value, _ in pairs])
    mask = torch.tensor([kept for _, kept in pairs])
    weight, slots = values.clone(), slots_for(values, mask, smooth=smooth)
    threshold = float(slots["threshold"])
    leave(weight, mask.byte(), *slots.values())
    for old, new, alive in zip(values.tolist(), weight.tolist(), mask.tolist(), strict=True):
        size = max(0.0, old**4 - threshold**4) ** 0.25  # slow and obvious
        assert new == pytest.approx(math.copysign(size, old) if alive else 0.0, rel=1e-3, abs=1e-2)
    again = weight.clone()
    enter(again, mask.byte(), *slots.values())
    torch.testing.assert_close(again, values, rtol=1e-5, atol=1e-6)
    assert torch.equal(again[~mask], values[~mask])


def test_a_kept_weight_is_never_zero_after_an_event() -> None:
    values = torch.tensor([0.5, -0.5, 0.5, 2.0])
    mask = torch.tensor([True, True, False, True])
    leave(values, mask.byte(), *slots_for(values, mask, smooth=True).values())
    assert values.ne(0).tolist() == mask.tolist()
    assert values[3] == pytest.approx(2.0, rel=1e-3)  # a large weight stays as it is


@settings(max_examples=200, deadline=None)
@given(
    st.integers(5, 3000),
    st.floats(0.1, 1.0),
    st.integers(1, 300),
    st.sampled_from(["default", "paper", "cubic", "one-shot"]),
)
def test_the_plan_with_second_chances(steps: int, until: float, events: int, kind: str) -> None:
    chances = flipout.SecondChances(until=until, events=events)
    try:
        schedule = {
            "default": lambda: flipout.Geometric(0.9, steps),
            "paper": lambda: flipout.Geometric.paper(0.9, steps),
            "cubic": lambda: flipout.Cubic(0.9, steps, prunings=4),
            "one-shot": lambda: flipout.OneShot(0.9, steps, 0.3),
        }[kind]()
    except ValueError:
        return  # too few steps
    plan = schedule.plan(1000)
    frozen = max(1, min(round(until * steps), round(1.5 * plan[-1].step)))
    if plan[0].step > frozen or plan[0].step == 0:
        with pytest.raises(ValueError, match="second_chances"):
            chances.extend(plan, steps)
        return
    longer = chances.extend(plan, steps)
    assert [p for p in longer if p in plan] == plan or len({p.step for p in plan}) < len(plan)
    at = [p.step for p in longer]
    assert at == sorted(at)
    assert frozen in at  # the masks are chosen one last time
    counts = [p.nonzero for p in longer]
    assert counts == sorted(counts, reverse=True)  # type: ignore[type-var]
    assert counts[-1] == plan[-1].nonzero
    gaps = [b - a for a, b in pairwise(at) if b <= frozen]
    assert max(gaps, default=0) <= 1.5 * max(1.0, frozen / events) + 1
    assert all(p.nonzero == max(q for q in plan if q.step <= p.step).nonzero for p in longer if p.step < plan[0].step)


CALM_FROM = 28
"""The last pruning is at step 30, and the masks are frozen at step 36: 30 % of that time before the last pruning."""


class Slow:
    """Second chances for SGD with momentum, written down as they are explained, in float64."""

    def __init__(self, model: nn.Module, plan: list[Any], frozen: int, chances: flipout.SecondChances) -> None:
        self.weights = [module.weight for module in model if isinstance(module, nn.Linear)]  # type: ignore[attr-defined]
        self.model, self.plan, self.frozen, self.chances = model, {p.step: p.nonzero for p in plan}, frozen, chances
        self.masks = [torch.ones_like(w, dtype=torch.bool) for w in self.weights]
        self.latent: list[Tensor] | None = None
        self.optimizer, self.steps = sgd(model), 0
        self.normalized = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm1d)]

    @torch.no_grad()
    def step(self) -> None:
        if self.latent is None:
            for weight, mask in zip(self.weights, self.masks, strict=True):
                assert weight.grad is not None
                weight.grad *= mask
        else:
            for weight, mask, latent in zip(self.weights, self.masks, self.latent, strict=True):
                assert weight.grad is not None
                weight.grad *= torch.where(mask, 1.0, self.chances.rate)
                for row, values in zip(weight.grad, latent, strict=True):
                    row *= min(1.0, float(self.chances.trust * max(1e-3, values.norm()) / row.norm().clamp_min(1e-30)))
                (group,) = self.optimizer.param_groups
                slower = self.chances.calm * (1 - group["momentum"]) / group["lr"]
                weight.grad *= min(1.0, slower) if self.steps >= CALM_FROM else 1.0
                if len(mask) in self.normalized and mask.any():
                    for row, kept in zip(weight.grad, mask, strict=True):
                        row *= (kept.double().mean() / mask.double().mean()).sqrt()
                weight.copy_(latent)
        self.optimizer.step()
        self.steps += 1
        if self.latent is not None:
            self._limit()
        if self.steps in self.plan and self.steps <= self.frozen:
            ranked = torch.cat([weight.flatten().abs() for weight in self.weights])
            kept = torch.cat([mask.flatten() for mask in self.masks])
            keep, order = self.plan[self.steps], ranked.argsort(stable=True)
            returning = self.chances.share * keep * (1 + math.cos(math.pi * self.steps / self.frozen)) / 2
            pruned = [i for i in order.tolist() if not kept[i]]
            kept[pruned[max(0, len(pruned) - round(returning)) :]] = True  # the candidates
            candidates = [i for i in order.tolist() if kept[i]]
            kept[candidates[: len(candidates) - keep]] = False
            parts = kept.split([weight.numel() for weight in self.weights])
            self.masks = [part.view_as(weight) for part, weight in zip(parts, self.weights, strict=True)]
            self.latent = [weight.clone() for weight in self.weights]
            self.thresholds = [0.999 * float(w.abs()[m].min()) if m.any() else 0.0 for w, m in self._pairs()]
            self.ceilings = [1.05 * float(w.abs()[~m].max()) if (~m).any() else 0.0 for w, m in self._pairs()]
        if self.latent is not None:
            self._limit()
            self.latent = [weight.clone() for weight in self.weights]
            for (weight, mask), threshold in zip(self._pairs(), self.thresholds, strict=True):
                size = (weight.abs() ** 4 - threshold**4).clamp_min(0) ** 0.25
                weight.copy_(weight.sign() * size * mask)
        if self.steps == self.frozen:
            self.latent = None
            for weight, mask in self._pairs():
                self.optimizer.state[weight]["momentum_buffer"].mul_(mask)
        if self.latent is None:
            for weight, mask in self._pairs():
                weight.mul_(mask)

    def _limit(self) -> None:
        """No pruned weight is above the ceiling of its layer."""
        for (weight, mask), ceiling in zip(self._pairs(), self.ceilings, strict=True):
            weight.copy_(torch.where(mask, weight, weight.clamp(-ceiling, ceiling)))

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.weights, self.masks, strict=True))


def normalized_mlp() -> nn.Sequential:
    """The gradients of its first layer are balanced."""
    first, *others = mlp()
    return nn.Sequential(first, nn.BatchNorm1d(16), *others)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("network", "trust", "share", "calm"),
    [
        (mlp, 0.02, 1.0, math.inf),
        (mlp, math.inf, 1.0, math.inf),
        (mlp, math.inf, 0.2, 0.1),
        (mlp, 0.3, 1.0, 0.3),
        (normalized_mlp, 0.3, 1.0, math.inf),
        (normalized_mlp, math.inf, 0.5, 0.3),
    ],
)
def test_a_training_against_the_slow_version(
    compiled: bool, network: Callable[[], nn.Sequential], trust: float, share: float, calm: float
) -> None:
    fast, slow = network().double(), network().double()
    optimizer = sgd(fast)
    chances = flipout.SecondChances(until=0.6, share=share, rate=0.4, trust=trust, calm=calm, events=30)
    pruner = magnitude(fast, optimizer, second_chances=chances, compile=compiled)
    reference = Slow(slow, pruner.plan(), 36, chances)
    for x, y in batches(STEPS):
        for model, step in ((fast, optimizer.step), (slow, reference.step)):
            model.zero_grad()
            cross_entropy(model(x.double()), y).backward()
            step()
        for weight, (expected, mask) in zip(pruner.weights, reference._pairs(), strict=True):
            assert torch.equal(weight.mask, mask), pruner.step
            torch.testing.assert_close(weight.parameter, expected, rtol=1e-4, atol=1e-4)
    assert share < 1 or trust < 1 or sum(event.grown for event in pruner.events) > 0


def test_a_pruned_weight_cannot_run_away() -> None:
    """Before the masks are chosen again, a hidden value grows to just above the largest of its layer."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    chances = flipout.SecondChances(until=0.9, events=1, trust=math.inf, rate=1.0)
    pruner = magnitude(
        model, optimizer, sparsity=0.5, steps=100, schedule=flipout.OneShot(0.5, 100, 0.6), second_chances=chances
    )
    weight = model[0].weight
    for _ in range(80):
        weight.grad = torch.where(pruner.masks["0.weight"], 0.0, -1.0)
        optimizer.step()
    largest = hidden(pruner)["0.weight"][~pruner.masks["0.weight"]].max()
    assert largest == pytest.approx(float(pruner.weights[0].slots["ceiling"]))
    assert largest < 1.0


def test_the_learning_rate_is_limited_while_the_last_choices_are_made() -> None:
    """Each group by its own learning rate, whether a number or a tensor; one below the limit is left alone."""
    first, second, third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    groups = [
        {"params": [first.weight], "lr": 0.1, "momentum": 0.9},
        {"params": [second.weight], "lr": torch.tensor(0.05), "momentum": 0.0},
        {"params": [third.weight], "lr": 0.01, "momentum": 0.9},
    ]
    factors = slowed(torch.optim.SGD(groups), 0.02)
    assert [float(factors.get(module.weight, 1.0)) for module in (first, second, third)] == pytest.approx(
        [0.02, 0.4, 0.2]
    )
    assert third.weight not in slowed(torch.optim.SGD(groups), 0.3)
    assert not slowed(torch.optim.AdamW(first.parameters()), 0.3)


def test_the_learning_rate_is_limited_in_odd_groups_of_an_optimizer() -> None:
    """Groups without parameters, a tensor with one element as learning rate, and no momentum."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    lr = torch.tensor([0.5])
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [first.weight], "lr": lr}, {"params": [second.weight]}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    optimizer.param_groups[2]["momentum"] = None
    factors = slowed(optimizer, 0.1)
    assert [factors[module.weight].shape for module in (first, second)] == [(), ()]
    assert [float(factors[module.weight]) for module in (first, second)] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("width", [16, 1500])
def test_a_tensor_with_one_element_as_learning_rate_trains_as_the_number(width: int) -> None:
    """With small weights, which are gathered, and with large ones, whose gradients a loop in C limits."""
    found = []
    for rate in (0.5, torch.tensor([0.5])):
        torch.manual_seed(0)
        first, last = nn.Linear(12, width), nn.Linear(width, 4)
        model = nn.Sequential(first, nn.ReLU(), last)
        groups = [dict[str, Any](params=first.parameters(), lr=rate), dict[str, Any](params=last.parameters(), lr=0.5)]
        optimizer = torch.optim.SGD(groups)
        magnitude(model, optimizer)
        train(model, optimizer, STEPS)
        found.append(first.weight.detach())
    torch.testing.assert_close(found[1], found[0])

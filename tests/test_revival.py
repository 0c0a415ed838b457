"""Second chances: hidden values of pruned weights, against slow versions and the promises of every pruner."""

from __future__ import annotations

import copy
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
from flipout.hidden_values import hidden_values_of, hide, no_hidden_values, set_limits, wake
from flipout.revival import as_revival
from tests.helpers import assert_masked, batches, convnet, cross_entropy, mlp, sgd, train
from tests.test_pruner import OPTIMIZERS

STEPS = 60
REVIVAL = flipout.Revival(events=40)
METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    name: flipout.METHODS[name] for name in ("flipout", "magnitude", "random", "magnitude-uncertainty")
}


def magnitude(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> flipout.Pruner:
    given = {"sparsity": 0.9, "steps": STEPS, "revival": REVIVAL, **options}
    return flipout.GlobalMagnitude(model, optimizer, **given)


def hidden(pruner: flipout.Pruner) -> dict[str, Tensor]:
    """The hidden values of every weight, between steps."""
    return {
        layer.name: hidden_values_of(layer.weight.detach(), layer.mask, layer.hidden)
        for layer in pruner.layers
        if layer.hidden is not None
    }


# The mathematics.


@given(
    st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=1, max_size=30),
    st.booleans(),
)
def test_hiding_and_waking_gives_the_same_values_back(pairs: list[tuple[float, bool]], shrink: bool) -> None:
    values = torch.tensor([value for value, _ in pairs])
    mask = torch.tensor([kept for _, kept in pairs])
    weight, hidden = values.clone(), no_hidden_values(values)
    set_limits(hidden, values, mask, shrink=shrink)
    threshold = float(hidden.threshold)
    hide(weight, mask.byte(), *hidden.tensors)
    for old, new, alive in zip(values.tolist(), weight.tolist(), mask.tolist(), strict=True):
        size = max(0.0, old**4 - threshold**4) ** 0.25  # slow and obvious
        assert new == pytest.approx(math.copysign(size, old) if alive else 0.0, rel=1e-3, abs=1e-2)
    again = weight.clone()
    wake(again, mask.byte(), *hidden.tensors)
    torch.testing.assert_close(again, values, rtol=1e-5, atol=1e-6)
    assert torch.equal(again[~mask], values[~mask])


def test_a_kept_weight_is_never_zero_after_an_event() -> None:
    values = torch.tensor([0.5, -0.5, 0.5, 2.0])
    mask = torch.tensor([True, True, False, True])
    hidden = no_hidden_values(values)
    set_limits(hidden, values, mask, shrink=True)
    hide(values, mask.byte(), *hidden.tensors)
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
    revival = flipout.Revival(until=until, events=events)
    try:
        schedule = {
            "default": lambda: flipout.Geometric(0.9, steps),
            "paper": lambda: flipout.Geometric.paper(0.9, steps),
            "cubic": lambda: flipout.Cubic(0.9, steps, prunings=4),
            "one-shot": lambda: flipout.OneShot(0.9, steps, 0.3),
        }[kind]()
    except ValueError:
        return  # too few steps
    plan, frozen = schedule.plan(1000), revival.frozen_at(steps)
    if plan[0].step > frozen or plan[0].step == 0:
        with pytest.raises(ValueError, match="revival"):
            revival.extend(plan, steps)
        return
    longer = revival.extend(plan, steps)
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


class Slow:
    """Second chances for SGD with momentum, written down as they are explained, in float64."""

    def __init__(self, model: nn.Module, plan: list[Any], frozen: int, revival: flipout.Revival) -> None:
        self.weights = [module.weight for module in model if isinstance(module, nn.Linear)]  # type: ignore[attr-defined]
        self.model, self.plan, self.frozen, self.revival = model, {p.step: p.nonzero for p in plan}, frozen, revival
        self.masks = [torch.ones_like(w, dtype=torch.bool) for w in self.weights]
        self.latent: list[Tensor] | None = None
        self.optimizer, self.steps = sgd(model), 0

    @torch.no_grad()
    def step(self) -> None:
        if self.latent is None:
            for weight, mask in zip(self.weights, self.masks, strict=True):
                assert weight.grad is not None
                weight.grad *= mask
        else:
            for weight, mask, latent in zip(self.weights, self.masks, self.latent, strict=True):
                assert weight.grad is not None
                weight.grad *= torch.where(mask, 1.0, self.revival.rate)
                for row, values in zip(weight.grad, latent, strict=True):
                    row *= min(1.0, float(self.revival.trust * max(1e-3, values.norm()) / row.norm().clamp_min(1e-30)))
                weight.copy_(latent)
        self.optimizer.step()
        self.steps += 1
        if self.latent is not None:
            self._limit()
        if self.steps in self.plan and self.steps <= self.frozen:
            ranked = torch.cat([weight.flatten().abs() for weight in self.weights])
            kept = torch.cat([mask.flatten() for mask in self.masks])
            keep, order = self.plan[self.steps], ranked.argsort(stable=True)
            returning = self.revival.share * keep * (1 + math.cos(math.pi * self.steps / self.frozen)) / 2
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


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("trust", "share"), [(0.02, 1.0), (math.inf, 1.0), (math.inf, 0.2)])
def test_a_training_against_the_slow_version(compiled: bool, trust: float, share: float) -> None:
    fast, slow = mlp().double(), mlp().double()
    optimizer = sgd(fast)
    revival = flipout.Revival(until=0.6, share=share, rate=0.4, trust=trust, events=30)
    pruner = magnitude(fast, optimizer, revival=revival, compile=compiled)
    reference = Slow(slow, pruner.plan(), 36, revival)
    for x, y in batches(STEPS):
        for model, step in ((fast, optimizer.step), (slow, reference.step)):
            model.zero_grad()
            cross_entropy(model(x.double()), y).backward()
            step()
        for layer, (weight, mask) in zip(pruner.layers, reference._pairs(), strict=True):
            assert torch.equal(layer.mask, mask), pruner.step
            torch.testing.assert_close(layer.weight, weight, rtol=1e-4, atol=1e-4)
    assert share < 1 or trust < 1 or sum(event.grown for event in pruner.events) > 0


def test_a_pruned_weight_cannot_run_away() -> None:
    """Before the masks are chosen again, a hidden value grows to just above the largest of its layer."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    revival = flipout.Revival(until=0.9, events=1, trust=math.inf, rate=1.0)
    pruner = magnitude(
        model, optimizer, sparsity=0.5, steps=100, schedule=flipout.OneShot(0.5, 100, 0.1), revival=revival
    )
    weight = model[0].weight
    for _ in range(80):
        weight.grad = torch.where(pruner.masks["0.weight"], 0.0, -1.0)
        optimizer.step()
    largest = hidden(pruner)["0.weight"][~pruner.masks["0.weight"]].max()
    assert pruner.layers[0].hidden is not None
    assert largest == pytest.approx(float(pruner.layers[0].hidden.ceiling))
    assert largest < 1.0


# The promises.


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_zeros_and_counts_at_every_moment(method: str, optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = METHODS[method](model, optimizer, sparsity=0.9, steps=STEPS, revival=REVIVAL)
    due = {pruning.step: pruning.nonzero for pruning in pruner.plan()}
    model.register_forward_pre_hook(lambda *_: assert_masked(pruner))
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        assert_masked(pruner)
        optimizer.step()
        assert_masked(pruner)
        if pruner.step in due and pruner.regrows:
            assert pruner.nonzero == due[pruner.step] == sum(int(w.count_nonzero()) for w in weights(pruner))
    assert pruner.finished
    assert pruner.nonzero == 35 == sum(int(mask.sum()) for mask in pruner.masks.values())


def weights(pruner: flipout.Pruner) -> list[Tensor]:
    return [layer.weight.detach() for layer in pruner.layers]


def test_weights_come_back_until_the_masks_are_frozen() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    seen: dict[int, dict[str, Tensor]] = {}
    train(model, optimizer, STEPS, after=lambda: seen.update({pruner.step: copy.deepcopy(pruner.masks)}))
    frozen = round(0.7 * STEPS)
    back = [event for event in pruner.events if event.grown]
    assert len(back) > 3
    assert all(event.step <= frozen for event in back)
    assert pruner.events[-1].step == frozen
    for step in range(frozen, STEPS + 1):
        assert all(torch.equal(mask, seen[frozen][name]) for name, mask in seen[step].items())
    returned = sum(event.grown for event in pruner.events)
    assert f"{returned:,} times a pruned weight came back" in str(pruner.summary())


def test_what_a_returning_weight_has_learned_is_kept() -> None:
    """A weight that comes back has its hidden value, shrunk, and its momentum goes on."""
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    before: dict[str, Tensor] = {}
    checked = 0
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        masks, before = copy.deepcopy(pruner.masks), hidden(pruner)
        optimizer.step()
        after = hidden(pruner)
        for layer in pruner.layers:
            if layer.name in before and layer.name in after:
                back = layer.mask & ~masks[layer.name]
                moved = (after[layer.name] - before[layer.name])[back]
                assert (moved.abs() < 0.5).all()  # no jump to or from 0
                assert (after[layer.name][back] != 0).all()
                checked += int(back.sum())
    assert checked > 5


def test_hidden_values_and_their_momentum_are_dropped_when_the_masks_are_frozen() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    assert all(layer.hidden is None for layer in pruner.layers)  # nothing is pruned yet
    train(model, optimizer, 30)
    assert pruner.regrows
    for layer in pruner.layers:
        assert layer.hidden is not None
        assert layer.hidden.values.nbytes == layer.weight.nbytes
    train(model, optimizer, round(0.7 * STEPS), skip=30)
    assert not pruner.regrows
    for layer in pruner.layers:
        assert layer.hidden is None
        assert not optimizer.state[layer.weight]["momentum_buffer"][~layer.mask].any()


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_floors_hold_at_every_event(scope: Any) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer, sparsity=0.95, floor=4, scope=scope)
    train(model, optimizer, STEPS)
    assert pruner.nonzero == 18
    assert all(min(event.kept.values()) >= 4 for event in pruner.events)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(METHODS)), st.integers(0, STEPS), st.booleans(), st.booleans())
def test_resumed_at_any_step_it_ends_bit_for_bit_the_same(
    method: str, at: int, model_first: bool, with_norm: bool
) -> None:
    build, shape = (convnet, (1, 6, 6)) if with_norm else (mlp, (12,))

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, optimizer, METHODS[method](model, optimizer, sparsity=0.9, steps=STEPS, revival=REVIVAL)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, until: int, skip: int) -> None:
        model.eval()  # dropout draws from torch's generator
        train(model, optimizer, until, skip=skip, shape=shape)

    model, optimizer, pruner = begin()
    steps(model, optimizer, at, 0)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    steps(model, optimizer, STEPS, at)
    again, its_optimizer, its_pruner = begin()
    if model_first:
        again.load_state_dict(saved[0])
    its_pruner.load_state_dict(saved[2])
    if not model_first:
        again.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    steps(again, its_optimizer, STEPS, at)
    for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert pruner.events == its_pruner.events
    assert all(torch.equal(pruner.masks[name], mask) for name, mask in its_pruner.masks.items())


def test_a_state_without_or_with_other_second_chances_is_refused() -> None:
    model = mlp()
    state = magnitude(model, sgd(model)).state_dict()
    for other in (None, flipout.Revival(events=41)):
        model = mlp()
        with pytest.raises(ValueError, match="revival"):
            magnitude(model, sgd(model), revival=other).load_state_dict(state)


def test_a_copy_trains_like_the_original() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    train(model, optimizer, 30)
    twin, its_optimizer, its_pruner = copy.deepcopy((model, optimizer, pruner))
    train(model, optimizer, STEPS, skip=30)
    train(twin, its_optimizer, STEPS, skip=30)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert pruner.events == its_pruner.events


def test_weights_that_the_user_changes_between_steps_stay_changed() -> None:
    """Also through `.data`, which torch does not notice."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = magnitude(model, optimizer)
    train(model, optimizer, 40)
    layer = pruner.layers[0]
    wanted = layer.weight.detach().clamp(-0.2, 0.2)
    layer.weight.data.clamp_(-0.2, 0.2)
    train(model, optimizer, 41, skip=40)  # a learning rate of 0: the step changes nothing
    assert pruner.regrows
    assert float(wanted.abs().max()) == pytest.approx(0.2)
    torch.testing.assert_close(layer.weight.detach(), wanted, rtol=1e-5, atol=1e-6)


def test_gradient_accumulation_sees_every_gradient_once() -> None:
    """Two halves of a batch give the step of the whole batch, for pruned weights too."""
    whole, halves = mlp().double(), mlp().double()
    optimizers = [sgd(whole), sgd(halves)]
    pruners = [magnitude(model, optimizer) for model, optimizer in zip((whole, halves), optimizers, strict=True)]
    for x, y in batches(STEPS):
        for model, parts in ((whole, 1), (halves, 2)):
            model.zero_grad()
            for a, b in zip(x.double().chunk(parts), y.chunk(parts), strict=True):
                (cross_entropy(model(a), b) / parts).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert pruners[0].events == pruners[1].events
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_closure() -> None:
    plain, closed = mlp(), mlp()
    optimizers = [sgd(plain), sgd(closed)]
    pruners = [magnitude(model, optimizer) for model, optimizer in zip((plain, closed), optimizers, strict=True)]
    train(plain, optimizers[0], STEPS)
    for x, y in batches(STEPS):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            closed.zero_grad()
            loss = cross_entropy(closed(x), y)
            loss.backward()
            return loss

        optimizers[1].step(closure)  # type: ignore[arg-type]
    assert pruners[0].events == pruners[1].events
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), closed.parameters(), strict=True))


def test_scaled_gradients_give_the_same_training() -> None:
    """A fused optimizer divides by the scale itself, so the pruner sees scaled gradients."""
    plain, scaled = mlp(), mlp()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True) for model in (plain, scaled)]
    pruners = [magnitude(model, optimizer) for model, optimizer in zip((plain, scaled), optimizers, strict=True)]
    train(plain, optimizers[0], STEPS)
    scale = torch.tensor(1024.0)
    optimizers[1].grad_scale, optimizers[1].found_inf = scale, torch.zeros(())  # type: ignore[attr-defined]
    for x, y in batches(STEPS):
        optimizers[1].zero_grad()
        (cross_entropy(scaled(x), y) * scale).backward()
        optimizers[1].step()
    assert pruners[0].events == pruners[1].events
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_an_error_inside_a_step_loses_nothing() -> None:
    class Fragile(torch.optim.SGD):
        breaks = False

        def step(self, closure: Any = None) -> Any:
            if self.breaks:
                raise RuntimeError("out of memory")
            return super().step(closure)

    model, other = mlp(), mlp()
    optimizers = [Fragile(m.parameters(), lr=0.1, momentum=0.9) for m in (model, other)]
    pruners = [magnitude(m, optimizer) for m, optimizer in zip((model, other), optimizers, strict=True)]
    train(model, optimizers[0], 30)
    train(other, optimizers[1], 30)
    optimizers[0].breaks = True
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, optimizers[0], 31, skip=30)
    optimizers[0].breaks = False
    pruners[0].state_dict()  # puts the zeros back
    assert_masked(pruners[0])
    train(model, optimizers[0], STEPS, skip=30)
    train(other, optimizers[1], STEPS, skip=30)
    assert pruners[0].nonzero == pruners[1].nonzero == 35
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_a_nan_stops_the_event_and_the_zeros_stay() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    train(model, optimizer, 30)
    masks = copy.deepcopy(pruner.masks)
    pruner.layers[1].weight.data[0, 0] = math.nan
    pruner.layers[1].mask[0, 0] = masks[pruner.layers[1].name][0, 0] = True
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        train(model, optimizer, STEPS, skip=30)
    for layer in pruner.layers:
        assert torch.equal(layer.mask, masks[layer.name])
        assert not layer.weight[~layer.mask].any()


def test_flips_are_counted_on_hidden_values() -> None:
    model = mlp()
    optimizer = sgd(model)
    aim = flipout.AimTest(model, optimizer)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=STEPS, revival=REVIVAL, horizon=None)
    flips, slow, signs = pruner.statistics["flips"], dict[str, Tensor](), dict[str, Tensor]()
    for x, y in batches(40):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        values = hidden(pruner) or {layer.name: layer.weight.detach().clone() for layer in pruner.layers}
        for name, value in values.items():
            new = value.sign()
            slow[name] = slow.get(name, torch.zeros_like(new)) + (new != signs.get(name, new))
            signs[name] = new
    flips = pruner.statistics["flips"]
    pruned = 0
    for layer in pruner.layers:
        first = aim.over_shoots[layer.name] - slow[layer.name]  # the flips of the first step
        assert ((first == 0) | (first == 1)).all()
        assert torch.equal(flips[layer.name], aim.over_shoots[layer.name])
        pruned += int(flips[layer.name][~layer.mask].sum())
    assert pruned > 0


def test_half_precision_weights_are_not_shrunk() -> None:
    model = mlp().to(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = magnitude(model, optimizer)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x.half()).float(), y).backward()
        optimizer.step()
        assert_masked(pruner)
        assert all(layer.hidden is None or not layer.hidden.threshold for layer in pruner.layers)
    assert pruner.nonzero == 35


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": 0}, "until"),
        ({"until": 1.5}, "until"),
        ({"rate": -1}, "rate"),
        ({"rate": 2}, "rate"),
        ({"trust": 0}, "trust"),
        ({"trust": math.nan}, "trust"),
        ({"events": 0}, "events"),
        ({"events": 1.5}, "events"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flipout.Revival(**options)


def test_ways_to_ask_for_second_chances() -> None:
    assert as_revival(True) == flipout.Revival()
    assert as_revival(False) is None
    assert as_revival(None) is None
    with pytest.raises(TypeError, match="revival"):
        as_revival(0.7)  # type: ignore[arg-type]


def test_schedules_that_leave_no_time_for_second_chances() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="first pruning is at step 54"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0.9))
    with pytest.raises(ValueError, match="before the first step"):
        magnitude(model, sgd(model), schedule=flipout.OneShot(0.9, STEPS, 0))


@pytest.mark.parametrize("method", ["deep-r", "lottery", "snip"])
def test_methods_that_decide_about_pruned_weights_themselves(method: str) -> None:
    model = mlp()
    options: dict[str, Any] = {"batches": list(batches(1)), "loss_fn": cross_entropy} if method == "snip" else {}
    with pytest.raises(ValueError, match="does not take revival="):
        flipout.METHODS[method](model, sgd(model), sparsity=0.9, steps=STEPS, revival=True, **options)


def test_prunings_after_the_freeze_are_for_good() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.Geometric(0.9, STEPS, prunings=20, window=(0.05, 0.9))
    pruner = magnitude(model, optimizer, schedule=schedule, revival=flipout.Revival(until=0.4))
    train(model, optimizer, STEPS)
    later = [event for event in pruner.events if event.step > 24]
    assert len(later) > 5
    assert not any(event.grown for event in later)
    assert pruner.nonzero == 35

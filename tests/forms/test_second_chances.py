"""Second chances keep the promises of every pruner: zeros, counts, resuming, copies, scalers, errors."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from tests.forms.trainings import CHANCES, METHODS, STEPS, hidden, magnitude
from tests.helpers import OPTIMIZERS, assert_masked, batches, convnet, cross_entropy, mlp, sgd, train


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_zeros_and_counts_at_every_moment(method: str, optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = METHODS[method](model, optimizer, sparsity=0.9, steps=STEPS, second_chances=CHANCES)
    due = {pruning.step: pruning.nonzero for pruning in pruner.plan()}
    model.register_forward_pre_hook(lambda *_: assert_masked(pruner))
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        assert_masked(pruner)
        optimizer.step()
        assert_masked(pruner)
        if pruner.step in due and not pruner.permanent:
            assert pruner.nonzero == due[pruner.step] == sum(int(w.count_nonzero()) for w in weights(pruner))
    assert pruner.finished
    assert pruner.nonzero == 35 == sum(int(mask.sum()) for mask in pruner.masks.values())


def weights(pruner: flipout.Pruner) -> list[Tensor]:
    return [weight.parameter.detach() for weight in pruner.weights]


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
    """A weight that comes back has its hidden value, moved towards 0, and its momentum continues."""
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
        for weight in pruner.weights:
            if weight.name in before and weight.name in after:
                back = weight.mask & ~masks[weight.name]
                moved = (after[weight.name] - before[weight.name])[back]
                assert (moved.abs() < 0.5).all()  # no jump to or from 0
                assert (after[weight.name][back] != 0).all()
                checked += int(back.sum())
    assert checked > 3


def test_hidden_values_and_their_momentum_are_dropped_when_the_masks_are_frozen() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    assert not any(weight.slots for weight in pruner.weights)  # nothing is pruned yet
    train(model, optimizer, 30)
    assert not pruner.permanent
    for weight in pruner.weights:
        assert weight.slots["values"].nbytes == weight.parameter.nbytes
    train(model, optimizer, round(0.7 * STEPS), skip=30)
    assert pruner.permanent
    for weight in pruner.weights:
        assert not weight.slots
        assert not optimizer.state[weight.parameter]["momentum_buffer"][~weight.mask].any()


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
        return model, optimizer, METHODS[method](model, optimizer, sparsity=0.9, steps=STEPS, second_chances=CHANCES)

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
    for other in (None, flipout.SecondChances(events=41)):
        model = mlp()
        with pytest.raises(ValueError, match="second_chances"):
            magnitude(model, sgd(model), second_chances=other).load_state_dict(state)


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
    weight = pruner.weights[0]
    wanted = weight.parameter.detach().clamp(-0.2, 0.2)
    weight.parameter.data.clamp_(-0.2, 0.2)
    train(model, optimizer, 41, skip=40)  # a learning rate of 0: the step changes nothing
    assert not pruner.permanent
    assert float(wanted.abs().max()) == pytest.approx(0.2)
    torch.testing.assert_close(weight.parameter.detach(), wanted, rtol=1e-5, atol=1e-6)


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
    pruner.weights[1].parameter.data[0, 0] = math.nan
    pruner.weights[1].mask[0, 0] = masks[pruner.weights[1].name][0, 0] = True
    with pytest.raises(FloatingPointError, match="NaN"):
        train(model, optimizer, STEPS, skip=30)
    for weight in pruner.weights:
        assert torch.equal(weight.mask, masks[weight.name])
        assert not weight.parameter[~weight.mask].any()


def test_flips_are_counted_on_hidden_values() -> None:
    model = mlp()
    optimizer = sgd(model)
    aim = flipout.AimTest(model, optimizer)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=STEPS, second_chances=CHANCES, horizon=None)
    flips, slow, signs = pruner.statistics["flips"], dict[str, Tensor](), dict[str, Tensor]()
    for x, y in batches(40):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        values = hidden(pruner) or {weight.name: weight.parameter.detach().clone() for weight in pruner.weights}
        for name, value in values.items():
            new = value.sign()
            slow[name] = slow.get(name, torch.zeros_like(new)) + (new != signs.get(name, new))
            signs[name] = new
    flips = pruner.statistics["flips"]
    pruned = 0
    for weight in pruner.weights:
        first = aim.over_shoots[weight.name] - slow[weight.name]  # the flips of the first step
        assert ((first == 0) | (first == 1)).all()
        assert torch.equal(flips[weight.name], aim.over_shoots[weight.name])
        pruned += int(flips[weight.name][~weight.mask].sum())
    assert pruned > 0


def test_half_precision_weights_are_not_moved() -> None:
    model = mlp().to(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = magnitude(model, optimizer)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x.half()).float(), y).backward()
        optimizer.step()
        assert_masked(pruner)
        assert not any(weight.slots.get("threshold") for weight in pruner.weights)
    assert pruner.nonzero == 35

"""A form of one's own: power propagation (Schwarz et al., 2021), `w = v * |v|^(a - 1)`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.numerics import zero_pruned
from flipout.runtime import groups
from tests.helpers import assert_masked, batches, cross_entropy, mlp, sgd, train

STEPS = 40


class PowerPropagation(flipout.Form):
    """What is trained is `v`, for a power of 2. Small weights learn slowly, so they stay small."""

    @staticmethod
    def entering(weight: Tensor, mask: Tensor) -> None:
        weight.copy_(weight.abs().sqrt().copysign(weight))

    @staticmethod
    def gradient(weight: Tensor, grad: Tensor, mask: Tensor) -> None:
        grad.mul_(2 * weight.abs())

    @staticmethod
    def leaving(weight: Tensor, mask: Tensor) -> None:
        weight.mul_(weight.abs())
        zero_pruned(weight, mask)


class Remembered(flipout.Form):
    """The same with `v` in a slot, and a number for each weight tensor."""

    shared = ("steps",)

    def slots(self, weight: Any) -> dict[str, Tensor]:
        local = weight.local.detach()
        return {"v": local.abs().sqrt().copysign(local), "steps": torch.zeros(())}

    @staticmethod
    def entering(weight: Tensor, mask: Tensor, v: Tensor, steps: Tensor) -> None:
        weight.copy_(v)

    @staticmethod
    def gradient(weight: Tensor, grad: Tensor, mask: Tensor, v: Tensor, steps: Tensor) -> None:
        grad.mul_(2 * weight.abs())

    @staticmethod
    def leaving(weight: Tensor, mask: Tensor, v: Tensor, steps: Tensor) -> None:
        zero_pruned(weight, mask)
        v.copy_(weight)
        weight.mul_(weight.abs())


class Counted(flipout.Form):
    """Permanent pruning, with a slot that nothing changes."""

    def slots(self, weight: Any) -> dict[str, Tensor]:
        return {"count": torch.zeros_like(weight.local)}


FORMS = [PowerPropagation, Remembered]


def attached(form: type[flipout.Form], **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    model = mlp()
    optimizer = sgd(model, lr=0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=STEPS, form=form(), **options)
    return model, optimizer, pruner


@pytest.mark.parametrize(("form", "expected"), [(flipout.Form, True), (Counted, True), (PowerPropagation, False)])
def test_a_form_has_loops_in_c_if_its_functions_have(form: type[flipout.Form], expected: bool) -> None:
    assert form().in_c() is expected


@pytest.mark.parametrize("compiled", [False, "auto"])
def test_a_form_with_a_slot_needs_no_function_of_its_own(compiled: Any) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=STEPS, form=Counted(), compile=compiled)
    train(model, optimizer, STEPS, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 35


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_it_trains_and_is_pruned_exactly(form: type[flipout.Form], compiled: bool) -> None:
    model, optimizer, pruner = attached(form, compile=compiled)
    x, y = next(batches(1, seed=5))
    before = cross_entropy(model(x), y).item()
    train(model, optimizer, STEPS, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 176
    assert sum(int(weight.parameter.count_nonzero()) for weight in pruner.weights) == 176
    assert cross_entropy(model(x), y).item() < before


@pytest.mark.parametrize("small", [groups.SMALL, 0])
@pytest.mark.parametrize("form", FORMS)
def test_its_gradient_is_that_of_the_chain_rule(
    form: type[flipout.Form], small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against autograd, which trains `v` itself."""
    monkeypatch.setattr(groups, "SMALL", small)
    model, optimizer, pruner = attached(form)
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0.0, weight_decay=0.0)
    train(model, optimizer, 10)
    names = list(pruner.masks)
    trained = {weight.name: pruner.form.trained(weight).detach().clone() for weight in pruner.weights}
    x, y = next(batches(1, seed=3))

    def loss(values: dict[str, Tensor]) -> Tensor:
        weights = {name: v * v.abs() * pruner.masks[name] for name, v in values.items()}
        return cross_entropy(torch.func.functional_call(copied, weights, (x,)), y)

    copied = copy.deepcopy(model)
    leaves = {name: trained[name].requires_grad_() for name in names}
    grads = torch.autograd.grad(loss(leaves), list(leaves.values()))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    optimizer.step()
    for name, grad in zip(names, grads, strict=True):
        v = leaves[name].detach() - 0.1 * grad
        both = masks[name] & pruner.masks[name]
        found = model.get_parameter(name).detach()
        torch.testing.assert_close(found[both], (v * v.abs())[both], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_saved_and_resumed_bit_for_bit(form: type[flipout.Form]) -> None:
    model, optimizer, pruner = attached(form)
    train(model, optimizer, 17)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    train(model, optimizer, STEPS, skip=17)
    again, its_optimizer, its_pruner = attached(form)
    for thing, state in zip((again, its_optimizer, its_pruner), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    train(again, its_optimizer, STEPS, skip=17)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert pruner.events == its_pruner.events


@pytest.mark.parametrize("form", FORMS)
def test_an_error_inside_a_step_leaves_the_weights(form: type[flipout.Form]) -> None:
    model, optimizer, pruner = attached(form)
    train(model, optimizer, 20)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def failing(*_: Any) -> None:
        raise RuntimeError("failing")

    handle = optimizer.register_step_pre_hook(failing)
    with pytest.raises(RuntimeError, match="failing"):
        train(model, optimizer, 21, skip=20)
    handle.remove()
    assert_masked(pruner)
    for old, parameter in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), old, rtol=1e-5, atol=1e-7)


REFUSED: list[Callable[[], Any]] = [lambda: True, flipout.SecondChances]


@pytest.mark.parametrize("chances", REFUSED)
def test_a_form_and_second_chances_exclude_each_other(chances: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="form="):
        attached(PowerPropagation, second_chances=chances())

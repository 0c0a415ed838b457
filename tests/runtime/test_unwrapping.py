"""Wrappers around an optimizer: unwrapped where that is safe, refused before anything is pruned where it is not."""

from __future__ import annotations

import copy
import importlib
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, mlp, sgd

ACCELERATE = """
import torch
class AcceleratedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler
    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)
    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad()
    def step(self, closure=None):
        if self.scaler is not None:
            self.scaler.step(self.optimizer, closure)
            self.scaler.update()
        else:
            self.optimizer.step(closure)
"""

LIGHTNING = """
class LightningOptimizer:
    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Lightning" + type(optimizer).__name__, (type(self), type(optimizer)), {})
    optimizer = property(lambda self: self._optimizer)
    def __getattr__(self, name):
        return getattr(self._optimizer, name)
    def step(self, closure=None):
        return self._optimizer.step(closure=closure)
"""

WRAPPERS = {
    "accelerate.optimizer": (ACCELERATE, "AcceleratedOptimizer"),
    "lightning.pytorch.core.optimizer": (LIGHTNING, "LightningOptimizer"),
    "pytorch_lightning.core.optimizer": (LIGHTNING, "LightningOptimizer"),
    "lightning.fabric.wrappers": (LIGHTNING.replace("LightningOptimizer", "_FabricOptimizer"), "_FabricOptimizer"),
    "lightning_fabric.wrappers": (LIGHTNING.replace("LightningOptimizer", "_FabricOptimizer"), "_FabricOptimizer"),
    "elsewhere.optimizer": (ACCELERATE, "AcceleratedOptimizer"),
}


@pytest.fixture
def wrapper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of the name, and in the module, that the real one has."""
    code, name = WRAPPERS[request.param]
    module = types.ModuleType(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    exec(code, vars(module))
    return getattr(importlib.import_module(request.param), name)


def steps(model: nn.Module, optimizer: Any, count: int) -> None:
    for x, y in batches(count):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def at_once(model: nn.Module, optimizer: Any) -> flipout.Pruner:
    schedule = flipout.OneShot(0.5, 10, at=0)
    return flipout.Pruner(model, optimizer, criterion=flipout.criteria.magnitude, schedule=schedule)


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if not name.startswith("elsewhere")], indirect=True)
def test_wrappers_that_only_call_the_inner_step_are_unwrapped(wrapper: Any) -> None:
    model = mlp()
    inner = sgd(model)
    optimizer = wrapper(inner)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    assert pruner.optimizer is inner
    steps(model, optimizer, 20)
    assert (pruner.step, pruner.nonzero) == (20, 35)
    assert_masked(pruner)
    flipout.AimTest(model, optimizer)
    reference = mlp()
    plain = sgd(reference)
    flipout.PaperFlipOut(reference, plain, sparsity=0.9, steps=20)
    steps(reference, plain, 20)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))


@pytest.mark.parametrize("wrapper", ["accelerate.optimizer"], indirect=True)
def test_accelerate_with_a_gradient_scaler(wrapper: Any) -> None:
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = wrapper(sgd(model), scaler)
    pruner = flipout.PaperFlipOut(model, wrapper(optimizer), sparsity=0.9, steps=20)
    for x, y in batches(20):
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(x), y)).backward()
        optimizer.step()
    assert (pruner.step, pruner.nonzero) == (20, 35)


@pytest.mark.parametrize("wrapper", ["accelerate.optimizer"], indirect=True)
def test_what_is_inside_a_safe_wrapper_is_checked(wrapper: Any) -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match="optimizer is a list"):
        at_once(model, wrapper([]))
    with pytest.raises(ValueError, match="LBFGS"):
        at_once(model, wrapper(torch.optim.LBFGS(model.parameters())))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Lookahead:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


class WithoutConstructor(torch.optim.Optimizer):
    """As in several Lookahead packages: a subclass that does not call the constructor of its base."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class WithHooksThatAreNeverCalled(WithoutConstructor):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._optimizer_step_pre_hooks = {}
        self._optimizer_step_post_hooks = {}


class WithoutInner(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    def step(self, closure: Any = None) -> Any:
        return None


@pytest.mark.parametrize("kind", [Lookahead, WithoutConstructor, WithHooksThatAreNeverCalled])
def test_other_wrappers_are_refused_before_anything_is_pruned(kind: Any) -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    for attach in (at_once, flipout.AimTest):
        with pytest.raises(TypeError, match=f"optimizer is a {kind.__name__}"):
            attach(model, kind(sgd(model)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    at_once(model, sgd(model))


@pytest.mark.parametrize("wrapper", ["elsewhere.optimizer"], indirect=True)
def test_a_name_is_not_enough(wrapper: Any) -> None:
    model = mlp()
    with pytest.raises(TypeError, match="AcceleratedOptimizer"):
        at_once(model, wrapper(sgd(model)))
    assert all((parameter != 0).any() for parameter in model.parameters())


def test_optimizers_without_working_hooks_and_things_that_are_no_optimizer() -> None:
    model = mlp()
    with pytest.raises(TypeError, match="WithoutInner"):
        at_once(model, WithoutInner(model.parameters()))
    for nonsense in (None, 3, "sgd", list(model.parameters()), torch.optim.SGD):
        with pytest.raises(TypeError, match="optimizer is a"):
            at_once(model, nonsense)
    assert all((parameter != 0).any() for parameter in model.parameters())


class Slow(torch.optim.SGD):
    """A Lookahead that is an optimizer itself: hooks around its step see everything it does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.slow: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            slow = self.slow.setdefault(parameter, parameter.clone())
            parameter.copy_(slow.lerp_(parameter, 0.5))
        return loss


def test_a_lookahead_that_is_an_optimizer_works() -> None:
    model = mlp()
    optimizer = Slow(model.parameters())
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    steps(model, optimizer, 20)
    assert_masked(pruner)
    pruner.check()
    assert pruner.step == 20

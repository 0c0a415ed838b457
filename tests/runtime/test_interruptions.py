"""Steps that fail, are interrupted, or evaluate their closure again: the model is sparse, and no hidden value is lost.

What holds after an interruption: every pruned weight is 0 in the model, and every weight has the hidden value that it
had before the step, or the one that the update has given it. If it comes before the update, training continues as if
the step had never been tried, but for rounding: a kept weight was moved to its hidden value and back. Outside of the
update a signal waits, so a step is either taken as a whole or not at all.
"""

from __future__ import annotations

import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.forms.trainings import STEPS, hidden, magnitude
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp, sgd, train


class Fragile(torch.optim.SGD):
    """Fails before or after its update, if asked to."""

    fails = ""

    def step(self, closure: Any = None) -> Any:
        if self.fails == "before":
            raise RuntimeError("fragile")
        loss = super().step(closure)
        if self.fails == "after":
            raise RuntimeError("fragile")
        return loss


def begun(steps: int = 30) -> tuple[nn.Module, Fragile, flipout.Pruner]:
    """A training with hidden values."""
    model = mlp()
    optimizer = Fragile(model.parameters(), lr=0.05, momentum=0.9)
    pruner = magnitude(model, optimizer)
    train(model, optimizer, steps)
    assert hidden(pruner)
    return model, optimizer, pruner


def closure_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    def closure() -> Tensor:
        model.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def assert_nothing_lost(pruner: flipout.Pruner) -> None:
    assert_masked(pruner)
    pruner.check()
    for name, values in hidden(pruner).items():
        assert (values != 0).all(), name
        assert values.isfinite().all(), name


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_error_inside_a_step(fails: str) -> None:
    model, optimizer, pruner = begun()
    before = hidden(pruner)
    optimizer.fails = fails
    with pytest.raises(RuntimeError, match="fragile"):
        train(model, optimizer, 31, skip=30)
    assert pruner.step == 30
    assert_nothing_lost(pruner)
    if fails == "before":
        for weight in pruner.weights:
            values = hidden(pruner)[weight.name]
            assert torch.equal(values[~weight.mask], before[weight.name][~weight.mask])
            torch.testing.assert_close(values, before[weight.name], rtol=1e-5, atol=1e-6)
    optimizer.fails = ""
    train(model, optimizer, STEPS, skip=30)
    assert pruner.finished
    assert_masked(pruner)


class Restless(torch.optim.SGD):
    """Moves all weights, also those without a gradient, and then fails if asked to."""

    fails = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            torch._foreach_add_(group["params"], 1e-3)
        if self.fails:
            raise RuntimeError("restless")


@pytest.mark.parametrize("method", ["magnitude", "rigl", "deep-r", "flipout"])
def test_an_error_after_an_update_that_moves_pruned_weights(method: str) -> None:
    model = mlp()
    optimizer = Restless(model.parameters(), lr=0.05)
    pruner = make(method, model, optimizer, steps=STEPS)
    train(model, optimizer, 40)
    assert_masked(pruner)
    assert pruner.nonzero < pruner.prunable
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="restless"):
        train(model, optimizer, 41, skip=40)
    assert_masked(pruner)
    pruner.check()


def test_an_error_in_a_closure_leaves_no_trace() -> None:
    (model, optimizer, pruner), (other, its_optimizer, _) = begun(), begun()
    x, y = next(batches(1, seed=7))

    def broken() -> float:
        closure_of(model, x, y)()
        raise RuntimeError("no more data")

    with pytest.raises(RuntimeError, match="no more data"):
        optimizer.step(broken)
    assert_nothing_lost(pruner)
    train(model, optimizer, STEPS, skip=30)
    train(other, its_optimizer, STEPS, skip=30)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_statistic_that_fails() -> None:
    class Failing(flipout.Statistic):
        fails = False

        def after(self, weight: Tensor, alive: Tensor) -> None:
            if type(self).fails:
                raise RuntimeError("failing")

        def value(self, weight: Tensor, step: int) -> Tensor:
            return weight.abs()

    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer, criterion=lambda failing: failing, statistics={"failing": Failing})
    train(model, optimizer, 30)
    Failing.fails = True
    with pytest.raises(RuntimeError, match="failing"):
        train(model, optimizer, 31, skip=30)
    assert_nothing_lost(pruner)


def test_a_kernel_that_fails_after_some_groups_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flipout.runtime.groups.SMALL", 0)  # each weight is a group
    model, optimizer, pruner = begun()
    kernels = type(pruner.work.kernels)
    run, settled = kernels.run, list[Any]()

    def failing(self: Any, kernel: Any, group: Any, *tensors: Tensor) -> None:
        if kernel.__name__ == "settle":
            settled.append(group)
            if len(settled) == 2:
                raise RuntimeError("out of memory")
        run(self, kernel, group, *tensors)

    monkeypatch.setattr(kernels, "run", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, optimizer, 31, skip=30)
    assert_nothing_lost(pruner)


@contextmanager
def interrupted_at(moment: int) -> Iterator[None]:
    """Ctrl-C at a certain call, of Python or C, within the block."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            if calls == moment:
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def restore_torch() -> None:
    """Undo what an interruption has left of torch's own blocks, which it may have hit while they ended."""
    torch.set_grad_enabled(True)
    torch._C._set_torch_function_state(torch._C._TorchFunctionState.ENABLED)  # type: ignore[attr-defined]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # as the user has set it
    signal.signal(signal.SIGINT, before)


# The signal may come while a generator of torch is closed, where Python ignores exceptions.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_any_moment(seed: int) -> None:
    model, optimizer, pruner = begun(25)
    chance, came, taken = random.Random(seed), 0, pruner.step
    for x, y in batches(25, seed=seed):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        before, step = hidden(pruner), pruner.step
        try:
            with interrupted_at(chance.randrange(1, 1500)):
                optimizer.step()
        except KeyboardInterrupt:
            came += 1
            restore_torch()
        taken += pruner.step - step
        assert_nothing_lost(pruner) if hidden(pruner) else assert_masked(pruner)
        if pruner.step == step and hidden(pruner) and before:
            for name, values in hidden(pruner).items():
                assert (values - before[name]).abs().max() < 1.0  # that of before, or that of the update
    assert came > 5
    assert pruner.step == taken
    train(model, optimizer, 2 * STEPS, skip=30)
    assert pruner.finished
    assert pruner.nonzero == 35
    assert_masked(pruner)


class SAM(torch.optim.SGD):
    """Sharpness-aware minimization: the gradient at the worst point nearby."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        trained = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in trained]).norm() + 1e-12
        moves = [0.05 * p.grad / norm for p in trained]
        torch._foreach_add_(trained, moves)
        with torch.enable_grad():
            loss = closure()
        torch._foreach_sub_(trained, moves)
        super().step()
        return loss


@pytest.mark.parametrize("method", ["flipout", "flipout-paper", "magnitude"])
def test_a_closure_that_is_evaluated_twice_sees_the_sparse_network(method: str) -> None:
    model = mlp()
    optimizer = SAM(model.parameters(), lr=0.05, momentum=0.9)
    pruner = flipout.METHODS[method](model, optimizer, sparsity=0.9, steps=STEPS)
    calls = 0
    for x, y in batches(STEPS):

        def closure(x: Tensor = x, y: Tensor = y) -> Any:
            nonlocal calls
            calls += 1
            assert_masked(pruner)
            return closure_of(model, x, y)()

        optimizer.step(closure)
        assert_masked(pruner)
    assert calls == 2 * STEPS
    assert pruner.step == STEPS
    assert pruner.nonzero == 35


def test_learning_rates_of_0_and_a_closure() -> None:
    model, optimizer, pruner = begun()
    before = hidden(pruner)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step(closure_of(model, *next(batches(1))))
    assert_nothing_lost(pruner)
    for name, values in hidden(pruner).items():
        torch.testing.assert_close(values, before[name], rtol=1e-5, atol=1e-6)


def test_hooks_of_the_user_see_the_finished_step() -> None:
    model = mlp()
    optimizer = sgd(model)
    seen: list[int] = []

    def look(*_: Any) -> None:
        assert_masked(pruner)
        seen.append(pruner.step)

    optimizer.register_step_post_hook(look)
    pruner = magnitude(model, optimizer)
    optimizer.register_step_post_hook(look)
    train(model, optimizer, STEPS)
    assert seen == [step for step in range(1, STEPS + 1) for _ in range(2)]


@pytest.mark.parametrize("first", ["scheduler", "pruner"])
def test_learning_rate_schedulers_notice_nothing(first: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", flipout.UnfinishedWarning)  # of what other tests have left to the collector
        pruner = magnitude(model, optimizer) if first == "pruner" else None
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        pruner = pruner or magnitude(model, optimizer)
        train(model, optimizer, STEPS, after=scheduler.step)
        pruner.remove()
        train(model, optimizer, 3, after=scheduler.step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1 ** ((STEPS + 3) // 10))


def test_a_removed_pruner_gives_the_step_back() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = magnitude(model, optimizer)
    pruner.remove()
    assert "step" not in vars(optimizer)

    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    wrapped = optimizer.step
    pruner = magnitude(model, optimizer)
    pruner.remove()
    assert optimizer.step is wrapped

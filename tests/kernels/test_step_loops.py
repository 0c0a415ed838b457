"""The loops around a step in C compute what the functions compute that they are declared for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.forms.hidden import enter, leave, limit_gradient, scale_pruned
from flipout.kernels import library, step_loops
from flipout.numerics import zero_pruned
from flipout.runtime.gradients import FAINT
from flipout.runtime.noise import perturb_by, squares_of_rows
from flipout.statistics.flips import count_and_fade, count_changes, count_in_parts

pytestmark = pytest.mark.skipif(not step_loops.available(), reason="the package was built without a compiler")

sizes = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 70)), st.tuples(st.integers(1, 2), st.integers(32_760, 32_900))
)
seeds = st.integers(0, 2**31)


class Case:
    """Random weights, some of them 0 or not finite, gradients, a mask, and everything else that a loop may read."""

    def __init__(self, size: tuple[int, int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal() -> Tensor:
            return torch.randn(size, generator=generator)

        def byte(high: int) -> Tensor:
            return torch.randint(0, high, size, generator=generator, dtype=torch.uint8)

        self.weight, self.grad, self.hidden = normal(), normal(), normal() / 10
        self.mask, self.low, self.high = byte(2), byte(256), byte(192)
        self.weight[byte(9) == 0] = 0
        self.grad[(self.mask == 0) & (byte(5) > 0)] *= FAINT
        self.grad[(self.mask == 0) & (byte(9) == 0)] = torch.inf
        self.threshold, self.ceiling = torch.rand(2, generator=generator)
        self.starts = torch.arange(size[0], dtype=torch.int32).view(-1, 1) * size[1]
        self.offsets = torch.arange(size[1], dtype=torch.int32)
        self.rows = torch.rand(size[0], 1, generator=generator)


def both(function: Callable[..., Any], *arguments: Any) -> tuple[list[Any], list[Any]]:
    """The arguments after a call of a function, and after one of its loop in C."""
    ours, slow = ([a.clone() if isinstance(a, Tensor) else a for a in arguments] for _ in range(2))
    loop = step_loops.loop_of(function)
    assert loop is not None
    loop(*ours)
    function(*slow)
    return ours, slow


def same(function: Callable[..., Any], *arguments: Any) -> None:
    for one, other in zip(*both(function, *arguments), strict=True):
        assert not isinstance(one, Tensor) or torch.equal(one, other)


def close(function: Callable[..., Any], *arguments: Any) -> None:
    for one, other in zip(*both(function, *arguments), strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, rtol=2e-6, atol=0)


@settings(max_examples=30)
@given(sizes, seeds)
def test_zeroing_and_counting_have_the_same_bits(size: tuple[int, int], seed: int) -> None:
    case = Case(size, seed)
    same(zero_pruned, case.grad, case.mask)
    for count in (count_changes, count_in_parts, count_and_fade(60_000)):
        same(count, case.weight, case.mask, case.low, case.high)


@settings(max_examples=30)
@given(sizes, seeds, st.booleans(), st.sampled_from([zero_pruned, leave]))
def test_counting_and_what_follows_are_one_loop(
    size: tuple[int, int], seed: int, every: bool, last: Callable[..., None]
) -> None:
    case = Case(size, seed)
    slots = [case.hidden, case.threshold, case.ceiling] if last is leave else []
    ours = [tensor.clone() for tensor in (case.weight, case.mask, *slots, case.low, case.high)]
    first, second = step_loops.loop_of(count_changes), step_loops.loop_of(last)
    assert first is not None
    assert second is not None
    step_loops.count_then(first, second, *ours, every=every)
    count_changes(case.weight, torch.ones_like(case.mask) if every else case.mask, case.low, case.high)
    last(case.weight, case.mask, *slots)
    for one, other in zip(ours, (case.weight, case.mask, *slots, case.low, case.high), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=0)


@settings(max_examples=30)
@given(sizes, seeds, st.booleans())
def test_hidden_values_enter_and_leave(size: tuple[int, int], seed: int, each: bool) -> None:
    case = Case(size, seed)
    threshold, ceiling = (case.rows, case.rows / 2) if each else (case.threshold, case.ceiling)
    close(enter, case.weight, case.mask, case.hidden, threshold, ceiling)
    close(leave, case.weight, case.mask, case.hidden, threshold, ceiling)


@settings(max_examples=30)
@given(sizes, seeds)
def test_gradients_are_restored_and_limited(size: tuple[int, int], seed: int) -> None:
    case = Case(size, seed)
    faint, rate, trust = torch.tensor(0.5 / FAINT), torch.tensor(0.5), torch.tensor(0.3)
    same(scale_pruned, case.grad, case.mask, faint, rate)
    same(scale_pruned, case.grad, case.mask, case.rows / FAINT, rate)
    for factor in (torch.tensor(1.0), case.rows.sqrt()):
        tensors = case.weight, case.grad, case.mask, faint, rate, trust, factor
        for one, other in zip(*both(limit_gradient, *tensors), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=0)  # a sum in another order


@settings(max_examples=30)
@given(
    sizes,
    seeds,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(["hidden", "masked"]),
)
def test_noise_has_the_same_bits(size: tuple[int, int], seed: int, factor: int, addend: int, pruned: str) -> None:
    case = Case(size, seed)
    same(perturb_by, case.grad, case.mask, case.starts, case.offsets, factor, addend, case.threshold, pruned)
    factors, addends = (torch.full((size[0], 1), number, dtype=torch.int32) for number in (factor, addend))
    same(perturb_by, case.grad, case.mask, case.starts, case.offsets, factors, addends, case.rows, pruned)


@settings(max_examples=30)
@given(sizes, seeds)
def test_sums_of_squares(size: tuple[int, int], seed: int) -> None:
    case = Case(size, seed)
    expected = squares_of_rows(case.weight.double(), case.mask)
    torch.testing.assert_close(step_loops.squares_of_rows(case.weight, case.mask).double(), expected, rtol=1e-4, atol=0)
    total = step_loops.sum_of_squares(case.weight, case.mask)
    assert total == pytest.approx(float(expected.sum()), rel=1e-4)


def train(steps: int, threads: int) -> dict[str, Tensor]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=steps, noise=0.1)
    assert pruner.work.kernels.in_c
    torch.set_num_threads(1)  # the layers themselves
    x, y = torch.randn(64, 300), torch.randint(0, 10, (64,))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        torch.set_num_threads(threads)
        optimizer.step()
        torch.set_num_threads(1)
    assert pruner.nonzero == round(0.1 * pruner.prunable)
    return {**model.state_dict(), **pruner.masks}


def test_a_training_has_the_same_bits_with_any_threads_and_instructions() -> None:
    kernels, threads = library.kernels(), torch.get_num_threads()
    best = kernels.instructions
    try:
        expected = train(20, 1)
        for number, instructions in ((2, best), (1, "plain"), (3, "plain")):
            kernels.choose_instructions(instructions)
            again = train(20, number)
            assert all(torch.equal(tensor, again[name]) for name, tensor in expected.items())
    finally:
        kernels.choose_instructions(best)
        torch.set_num_threads(threads)


def test_loops_in_c_train_as_torch_does() -> None:
    """The same losses to rounding, for a few steps: later, a last bit decides which of two weights is pruned."""

    def losses(compile: bool | str) -> list[float]:  # noqa: A002
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 10)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        options: dict[str, Any] = {"compile": compile}
        flipout.FlipOut(model, optimizer, sparsity=0.8, steps=12, noise=0.1, **options)
        x, y, found = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,)), []
        for _ in range(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses("auto") == pytest.approx(losses(False), rel=1e-3)

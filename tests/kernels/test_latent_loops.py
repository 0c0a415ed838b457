"""The loops of latent forms in C compute what the functions compute that they are declared for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.forms import gates, thresholds, variational
from flipout.forms.latent import adam
from flipout.kernels import library, step_loops
from flipout.random_numbers import normal_at, uniform_at

pytestmark = pytest.mark.skipif(not step_loops.available(), reason="the package was built without a compiler")

sizes = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 70)), st.tuples(st.integers(1, 2), st.integers(32_760, 32_900))
)
seeds = st.integers(0, 2**31)
integers = st.integers(-(2**31), 2**31 - 1)

METHODS = ["variational-dropout", "l0", "l0-units", "dynamic-sparse-training"]


def loop_of(function: Callable[..., Any]) -> Callable[..., Any]:
    loop = step_loops.loop_of(function)
    assert loop is not None
    return loop


def drawn(size: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, some of them 0, latents and gradients."""
    generator = torch.Generator().manual_seed(seed)
    theta, latent, grad = (torch.randn(size, generator=generator) for _ in range(3))
    theta[torch.rand(size, generator=generator) < 0.1] = 0
    return theta, latent, grad


def compare(
    module: Any, theta: Tensor, latent: Tensor, noise: Tensor | None, grad: Tensor, lambda_: float, wide: int = 1
) -> None:
    """Both functions of a form, in C and with torch. `wide` makes room for sums of many numbers."""
    values = loop_of(module.computed)(theta, latent, noise)
    torch.testing.assert_close(values, module.computed(theta, latent, noise), rtol=2e-5, atol=1e-5)
    arguments = theta, latent, noise, grad, torch.tensor(lambda_)
    for one, other in zip(loop_of(module.backward)(*arguments), module.backward(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=wide * 2e-4, atol=wide * 2e-5)


@settings(max_examples=30)
@given(sizes, seeds, integers, integers)
def test_noise_has_the_same_bits(size: tuple[int, int], seed: int, factor: int, addend: int) -> None:
    starts = torch.randint(-(2**31), 2**31 - 1, (size[0], 1), generator=torch.Generator().manual_seed(seed)).int()
    offsets = torch.arange(size[1], dtype=torch.int32)
    for function in (normal_at, uniform_at):
        assert torch.equal(
            loop_of(function)(starts, offsets, factor, addend), function(starts, offsets, factor, addend)
        )


@settings(max_examples=30)
@given(sizes, seeds, st.floats(-12, 2), st.booleans(), st.sampled_from([0.0, 1.7e-5, 0.3]))
def test_variational_dropout(size: tuple[int, int], seed: int, level: float, noisy: bool, lambda_: float) -> None:
    theta, latent, grad = drawn(size, seed)
    theta, latent = theta * 0.3, latent + level
    log_alpha = variational.log_alpha(theta, latent)
    latent[(log_alpha - 3).abs() < 1e-4] += 0.01  # a last bit decides what is pruned there, and what is clipped below
    latent[(log_alpha.abs() - 8).abs() < 1e-4] += 0.01
    compare(variational, theta, latent, drawn(size, seed + 1)[0] if noisy else None, grad, lambda_)


@settings(max_examples=30)
@given(sizes, seeds, st.floats(-4, 4), st.booleans(), st.sampled_from(["weight", "row", "column"]))
def test_gates(size: tuple[int, int], seed: int, level: float, noisy: bool, of: str) -> None:
    theta, _, grad = drawn(size, seed)
    shape = {"weight": size, "row": (size[0], 1), "column": (1, size[1])}[of]
    latent = drawn(shape, seed)[1] + level
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    gate = gates.gate(latent, noise if noisy else None)
    latent[(gate.abs() < 1e-4) | ((gate - 1).abs() < 1e-4)] += 0.01  # a last bit decides whether it is clipped
    compare(gates, theta, latent, noise if noisy else None, grad, 1e-3, wide=4)


@settings(max_examples=30)
@given(sizes, seeds, st.floats(-0.5, 2))
def test_thresholds(size: tuple[int, int], seed: int, level: float) -> None:
    theta, _, grad = drawn(size, seed)
    threshold = torch.full((size[0], 1), level) + torch.rand(size[0], 1)
    assert torch.equal(
        loop_of(thresholds.computed)(theta, threshold, None), thresholds.computed(theta, threshold, None)
    )
    arguments = theta, threshold, None, grad, torch.tensor(0.1)
    (own, through), (other, _) = loop_of(thresholds.backward)(*arguments), thresholds.backward(*arguments)
    torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)
    exact = thresholds.backward(*(None if each is None else each.double() for each in arguments))[1]  # type: ignore[arg-type]
    torch.testing.assert_close(through.double(), exact, rtol=1e-4, atol=1e-3)


def test_the_slope_of_a_gate_is_0_where_it_is_just_closed_or_open() -> None:
    """Also of the logarithms of alpha near log(1/11) and log(11) whose gate is exactly 0 or 1."""
    for edge in (1 / 11, 11):
        near = torch.tensor([edge]).log().view(torch.int32) + torch.arange(-4000, 4000, dtype=torch.int32)
        latent = near.view(torch.float32)
        ones = torch.ones_like(latent)
        gate, slope = loop_of(gates.backward)(ones, latent, None, ones, torch.tensor(0.0))
        assert not slope[(gate == 0) | (gate == 1)].any()
        assert slope[(gate > 0) & (gate < 1)].all()


@settings(max_examples=50)
@given(
    seeds,
    st.sampled_from(["variational", "gates", "rows", "thresholds"]),
    st.sampled_from([(0, torch.nan), (1, torch.nan), (2, torch.nan), (0, torch.inf), (1, -torch.inf)]),
)
def test_numbers_that_are_not_finite(seed: int, form: str, where: tuple[int, float]) -> None:
    theta, latent, grad = drawn((5, 40), seed)
    latent = {"rows": latent[:, :1].contiguous(), "thresholds": latent[:, :1].abs()}.get(form, latent)
    noise = torch.rand(latent.shape, generator=torch.Generator().manual_seed(seed))
    which, number = where
    (theta, grad, latent)[which].flatten()[::3] = number
    module = {"variational": variational, "thresholds": thresholds}.get(form, gates)
    given_noise = None if module is thresholds else noise
    values = loop_of(module.computed)(theta, latent, given_noise)
    expected = module.computed(theta, latent, given_noise)
    torch.testing.assert_close(values, expected, rtol=2e-5, atol=1e-5, equal_nan=True)
    arguments = theta, latent, given_noise, grad, torch.tensor(0.1)
    for one, other in zip(loop_of(module.backward)(*arguments), module.backward(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)


@settings(max_examples=30)
@given(sizes, seeds, st.integers(1, 100_000))
def test_a_step_of_adam(size: tuple[int, int], seed: int, step: int) -> None:
    latent, first, grad = drawn(size, seed)
    ours, theirs = ([each.clone() for each in (latent, grad, first, first.square())] for _ in range(2))
    loop_of(adam)(*ours, 1e-3, step)
    function: Callable[..., None] = adam
    function(*theirs, 1e-3, step)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-6)


def train(method: str, steps: int, **options: Any) -> tuple[dict[str, Tensor], list[float]]:
    """The final weights and masks of a short training, and the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 30), nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y, losses = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,)), []
    more = {"gates": "unit"} if method == "l0-units" else {}
    name = method.removesuffix("-units")
    pruner = flipout.METHODS[name](model, optimizer, steps=steps, latent_lr=0.1, sparsity=0.8, **more, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert pruner.nonzero == round(0.2 * pruner.prunable)
    return {**model.state_dict(), **pruner.masks}, losses


@pytest.mark.parametrize("method", METHODS)
def test_a_training_has_the_same_bits_with_any_instructions(method: str) -> None:
    kernels = library.kernels()
    best = kernels.instructions
    expected, _ = train(method, 16)
    try:
        kernels.choose_instructions("plain")
        again, _ = train(method, 16)
    finally:
        kernels.choose_instructions(best)
    assert all(torch.equal(tensor, again[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("method", METHODS)
def test_a_loop_has_the_same_bits_with_any_threads(method: str) -> None:
    module = {"variational-dropout": variational, "dynamic-sparse-training": thresholds}.get(method, gates)
    theta, latent, grad = drawn((130, 700), 0)
    latent = {"l0-units": latent[:1], "dynamic-sparse-training": latent[:, :1].contiguous()}.get(method, latent)
    noise = None if module is thresholds else torch.rand(latent.shape)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            own, through = loop_of(module.backward)(theta, latent, noise, grad, torch.tensor(1e-3))
            results.append((loop_of(module.computed)(theta, latent, noise), own, through))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


@pytest.mark.parametrize("method", METHODS)
def test_loops_in_c_train_as_torch_does(method: str) -> None:
    """The same losses to rounding, for a few steps: later, a last bit decides which of two weights is pruned."""
    assert train(method, 12)[1] == pytest.approx(train(method, 12, compile=False)[1], rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_long_training_is_not_compiled_if_there_are_loops(method: str) -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.METHODS[method.removesuffix("-units")](model, optimizer, steps=10**9)
    assert pruner.work.kernels.in_c
    assert not pruner.work.kernels.compiled
    pruner._farewell.detach()

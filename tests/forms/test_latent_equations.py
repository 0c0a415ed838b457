"""The equations of the latent forms against autograd of the textbook formulation, with the same noise."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flipout.forms import HardConcrete, Latent, Thresholds, VariationalDropoutForm
from flipout.forms.gates import gate, gate_slope, open_probability
from flipout.forms.thresholds import surrogate
from flipout.forms.variational import divergence, log_alpha, slope

ROWS, COLUMNS = 3, 5
SEEDS = st.integers(0, 10_000)


def drawn(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def by_autograd(form: Latent, theta: Tensor, latent: Tensor, noise: Tensor | None, seed: int) -> None:
    """`backward` against autograd of a loss of `textbook`, and `computed` against its values."""
    weights = drawn(seed + 1, *theta.shape)
    theta, latent = theta.requires_grad_(), latent.requires_grad_()
    values, penalty = textbook(form, theta, latent, noise)
    loss = (values * weights).sum() + values.square().sum() + 0.3 * penalty
    expected = torch.autograd.grad(loss, [theta, latent])
    with torch.no_grad():
        torch.testing.assert_close(form.computed(theta, latent, noise), values)
        found = form.backward(theta, latent, noise, weights + 2 * values, torch.tensor(0.3, dtype=theta.dtype))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def textbook(form: Latent, theta: Tensor, latent: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the network computes with, and the penalty, as the papers write them."""
    if isinstance(form, VariationalDropoutForm):
        log = (latent - torch.log(theta**2 + 1e-8)).clamp(-8, 8)
        values = theta if noise is None else theta + torch.exp(latent).sqrt() * noise
        k1, k2, k3 = 0.63576, 1.8732, 1.48695
        negative = k1 * torch.sigmoid(k2 + k3 * log) - 0.5 * torch.log1p(torch.exp(-log)) - k1
        return values * (log < 3), -negative.sum()
    if isinstance(form, HardConcrete):
        u = torch.full_like(latent, 0.5) if noise is None else noise
        temperature = 1.0 if noise is None else 2 / 3
        s = torch.sigmoid((torch.log(u) - torch.log(1 - u) + latent) / temperature)
        z = torch.clamp(s * 1.2 - 0.1, 0, 1)
        open_ = torch.sigmoid(latent - 2 / 3 * math.log(0.1 / 1.1))
        return theta * z, open_.expand_as(theta).sum()
    return theta * Step.apply(theta.abs() - latent), torch.exp(-latent).sum()


class Step(torch.autograd.Function):
    """The unit step with the surrogate derivative of dynamic sparse training."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        each = [2 - 4 * abs(v) if abs(v) <= 0.4 else 0.4 if abs(v) <= 1 else 0.0 for v in x.flatten().tolist()]
        return grads[0] * torch.tensor(each, dtype=x.dtype).view_as(x)


@given(SEEDS, st.booleans(), st.floats(-12, 2))
def test_variational_dropout(seed: int, noisy: bool, level: float) -> None:
    form = VariationalDropoutForm(1.0, 1e-3, 0, (0.0, 0.0))
    theta, latent = drawn(seed, ROWS, COLUMNS, scale=0.3), level + drawn(seed + 7, ROWS, COLUMNS)
    by_autograd(form, theta, latent, drawn(seed + 9, ROWS, COLUMNS) if noisy else None, seed)


@given(SEEDS, st.booleans(), st.booleans(), st.floats(-4, 4))
def test_l0(seed: int, noisy: bool, units: bool, level: float) -> None:
    form = HardConcrete(1.0, 1e-3, 0, "unit" if units else "weight", 0.5)
    shape = (1, COLUMNS) if units else (ROWS, COLUMNS)
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.98 + 0.01
    by_autograd(form, drawn(seed, ROWS, COLUMNS), level + drawn(seed + 7, *shape), uniform if noisy else None, seed)


@given(SEEDS)
def test_dynamic_sparse_training(seed: int) -> None:
    by_autograd(Thresholds(1.0, 1e-2), drawn(seed, ROWS, COLUMNS), drawn(seed + 7, ROWS, 1).abs(), None, seed)


@given(st.floats(-8, 8))
def test_the_divergence_falls_to_zero_with_the_noise(value: float) -> None:
    at = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    divergence(at).backward()
    assert at.grad is not None
    torch.testing.assert_close(slope(at.detach()), at.grad)
    assert float(slope(at.detach())) < 0
    assert float(divergence(at.detach())) > float(divergence(torch.tensor(8.0, dtype=torch.float64))) - 1e-9


def test_a_weight_of_zero_has_a_finite_log_alpha() -> None:
    assert log_alpha(torch.zeros(1), torch.tensor([-10.0])).tolist() == [8.0]
    theta, latent = torch.zeros(1), torch.tensor([-10.0])
    form = VariationalDropoutForm(1.0, 1e-3, 0, (0.0, 0.0))
    assert all(
        each.isfinite().all() for each in form.backward(theta, latent, torch.ones(1), torch.ones(1), torch.tensor(1.0))
    )


@given(st.floats(-4, 4))
def test_a_gate_is_open_as_often_as_its_probability_says(value: float) -> None:
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    log = torch.full_like(u, value)
    share = float((gate(log, u) > 0).double().mean())
    assert abs(share - float(open_probability(log[:1]))) < 1e-3
    assert (gate_slope(log, u)[gate(log, u) >= 1] == 0).all()


def test_the_surrogate_is_that_of_the_paper() -> None:
    at = torch.tensor([0.0, 0.2, -0.2, 0.4, 0.5, -1.0, 1.1])
    torch.testing.assert_close(surrogate(at), torch.tensor([2.0, 1.2, 1.2, 0.4, 0.4, 0.4, 0.0]))

"""Noise relative to the weights, as printed in the paper: where it cannot work, and how fast weights grow."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import flipout
from tests.helpers import mlp, sgd


@pytest.mark.parametrize(("scale", "rate", "warned"), [(1.0, 0.1, True), (0.1, 0.1, True), (1.0, 1e-4, False)])
def test_noise_as_printed_is_warned_of_where_it_cannot_work(scale: float, rate: float, warned: bool) -> None:
    model = mlp()
    optimizer = sgd(model, lr=rate)
    noise = flipout.GradientNoise(scale, "weight")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=1000, noise=noise)
    assert pruner.noise is noise
    diverging = [str(w.message) for w in caught if w.category is flipout.DivergenceWarning]
    assert len(diverging) == warned
    assert all("relative_to='gradient'" in message for message in diverging)


@pytest.mark.parametrize(("rate", "momentum", "decay"), [(0.1, 0.9, 5e-4), (0.1, 0.0, 0.0), (0.3, 0.5, 0.1)])
def test_noise_as_printed_makes_weights_grow_as_fast_as_foretold(rate: float, momentum: float, decay: float) -> None:
    weights = nn.ParameterList([nn.Parameter(torch.randn(300, 300))])
    optimizer = torch.optim.SGD(weights, rate, momentum=momentum, weight_decay=decay)
    noise = flipout.GradientNoise(1.0, "weight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", flipout.DivergenceWarning)
        flipout.Dense(weights, optimizer, steps=200, noise=noise, include="*")
    before = float(weights[0].detach().norm())
    for _ in range(200):
        weights[0].grad = torch.zeros(300, 300)
        optimizer.step()
    measured = math.log(float(weights[0].detach().norm()) / before) / 200
    assert noise.growth(rate, momentum, decay) == pytest.approx(measured, rel=0.05)

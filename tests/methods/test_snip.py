"""SNIP against a slow and obvious implementation."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, convnet, cross_entropy, mlp, sgd
from tests.methods.masks import equal, smallest


@pytest.mark.parametrize("rounds", [1, 4])
def test_snip(rounds: int) -> None:
    data = list(batches(3, seed=2))
    reference = mlp()
    weights = [reference.get_parameter(f"{i}.weight") for i in (0, 2, 4)]
    masks = [torch.ones_like(weight, dtype=torch.bool) for weight in weights]
    for i in range(1, rounds + 1):
        reference.zero_grad()
        for x, y in data:
            cross_entropy(reference(x), y).backward()
        products = [weight.detach() * weight.grad for weight in weights if weight.grad is not None]
        scores = [torch.where(mask, product.abs(), -1.0) for product, mask in zip(products, masks, strict=True)]
        masks = smallest(scores, round(352 * 0.1 ** (i / rounds)))
        with torch.no_grad():
            for weight, mask in zip(weights, masks, strict=True):
                weight.mul_(mask)
    model = mlp()
    pruner = flipout.SNIP(
        model, sgd(model), sparsity=0.9, steps=10, batches=iter(data), loss_fn=cross_entropy, rounds=rounds
    )
    assert pruner.nonzero == 35
    assert len(pruner.events) == rounds
    assert equal(pruner, masks)
    assert_masked(pruner)


def test_snip_leaves_no_trace() -> None:
    model = convnet()
    x, y = next(batches(1, shape=(1, 6, 6)))
    cross_entropy(model(x), y).backward()
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    biases = {name: p.detach().clone() for name, p in model.named_parameters() if "bias" in name}
    state = torch.get_rng_state()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)
    flipout.SNIP(model, sgd(model), sparsity=0.5, steps=10, batches=loader, loss_fn=cross_entropy, rounds=3)
    assert torch.equal(state, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(*gradients[name])
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0]
        assert torch.equal(*buffers[name]), name
    assert all(torch.equal(dict(model.named_parameters())[name], bias) for name, bias in biases.items())
    assert model.training


def test_snip_leaves_no_trace_of_iterators_and_of_buffers_that_are_replaced() -> None:
    class Average(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(12))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    average = Average()
    model = nn.Sequential(average, mlp())
    buffer = average.mean
    x, y = next(batches(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)
    few = itertools.islice(loader, 2)  # draws from torch's random state when it starts, and again on the way
    state = torch.get_rng_state()
    flipout.SNIP(model, sgd(model), sparsity=0.5, steps=10, batches=few, loss_fn=cross_entropy)
    assert torch.equal(state, torch.get_rng_state())
    assert average.mean is buffer
    assert not buffer.any()

"""What a person reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

import flipout
from flipout.summary import summarize
from flipout.weights import Weight, count_weights
from tests.helpers import mlp, sgd, train


def test_the_table() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 40)
    summary = pruner.summary()
    assert [layer.name for layer in summary.layers] == ["0.weight", "2.weight", "4.weight"]
    assert (summary.weights, summary.kept) == (352, 35)
    assert summary.sparsity == pruner.sparsity
    lines = str(summary).splitlines()
    assert lines[0].split() == ["layer", "shape", "weights", "kept", "sparsity", "dead", "inputs", "dead", "outputs"]
    assert "16 x 12" in lines[2]
    assert lines[-2].split() == ["total", "352", "35", "90.0568%"]
    assert lines[-1] == repr(pruner)
    assert "not finished" not in str(summary)


def brute_force(module: nn.Linear | _ConvNd, mask: Tensor) -> tuple[int, int]:
    """Dead channels by asking the module itself: ones through the mask, one channel at a time."""
    with torch.no_grad():
        module.weight.copy_(mask.to(module.weight.dtype))
    linear = isinstance(module, nn.Linear)
    inputs = module.in_features if isinstance(module, nn.Linear) else module.in_channels
    size: tuple[int, ...] = () if linear else (5,) * (mask.ndim - 2)
    answers = []
    for channel in range(inputs):
        x = torch.zeros(1, inputs, *size)
        x[:, channel] = 1
        answers.append(module(x).flatten(2).sum(2)[0] if not linear else module(x)[0])
    reach = torch.stack(answers) > 0
    return int((~reach.any(1)).sum()), int((~reach.any(0)).sum())


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 4, bias=False),
        nn.Conv2d(6, 4, 3, bias=False),
        nn.Conv2d(6, 4, 3, groups=2, bias=False),
        nn.Conv1d(6, 6, 3, groups=6, bias=False),
        nn.ConvTranspose2d(6, 4, 3, bias=False),
        nn.ConvTranspose1d(6, 4, 3, groups=2, bias=False),
    ],
    ids=repr,
)
def test_dead_channels_against_the_module_itself(module: nn.Linear | _ConvNd) -> None:
    parameter = module.weight
    assert isinstance(parameter, nn.Parameter)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        weight = Weight("layer", module, parameter)
        share = 0.15 / (parameter[0, 0].numel() ** 0.5)
        weight.mask.copy_(torch.rand(parameter.shape, generator=generator) < share)
        count_weights([weight])
        row = summarize(weight)
        assert (row.dead_inputs, row.dead_outputs) == brute_force(module, weight.mask)
        assert row.kept == int(weight.mask.sum())


def test_what_has_no_channels() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4))
    pruner = flipout.Dense(model, sgd(model), include=lambda name, module, parameter: name in ("0.weight",))
    assert summarize(pruner.weights[0]).inputs is None
    pruner.remove()
    pruner = flipout.Dense(model, sgd(model), include="1")
    assert all(layer.outputs is None for layer in pruner.summary().layers)


def test_the_plan_before_training() -> None:
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.75, steps=350, schedule="paper")
    assert pruner.plan() == [(117, 0.5, 176), (234, 0.75, 88)]
    assert str(pruner.plan()).splitlines()[2].split() == ["117", "50.0000%", "176"]


def test_events_and_repr() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.75, steps=40)
    train(model, optimizer, 10)
    assert [(event.step, event.nonzero) for event in pruner.events] == [(p.step, p.nonzero) for p in pruner.plan()[:8]]
    assert all(sum(event.kept.values()) == event.nonzero for event in pruner.events)
    assert repr(pruner).startswith("PaperFlipOut(step 10 of 40, 8 of 18 prunings, ")


def test_a_shrunk_network_reads_like_the_whole_one() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.95, steps=20, floor=2)
    train(model, optimizer, 15)
    x = torch.randn(4, 12)
    whole = pruner.summary(), pruner.summary(x).effective, pruner.coverage()
    pruner.shrink(x)
    assert pruner.shrunk
    sizes = [tuple(parameter.shape) for parameter in model.parameters()]
    tensors = [parameter.detach().clone() for parameter in model.parameters()]
    assert (pruner.summary(), pruner.summary(x).effective, pruner.coverage()) == whole
    assert str(pruner.summary()) == str(whole[0])
    assert str(pruner.coverage()) == str(whole[2])
    assert pruner.shrunk
    assert [tuple(parameter.shape) for parameter in model.parameters()] == sizes
    assert all(torch.equal(a, b) for a, b in zip(tensors, model.parameters(), strict=True))
    assert len(pruner.shrinks) == 1

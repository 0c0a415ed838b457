"""The fan-in: how many weights are in the sum of one output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flipout
from flipout.statistics import FanIn, Place
from flipout.statistics.values import fan_in_of
from tests.helpers import mlp, sgd

CASES: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(7, 3), (7,)),
    (nn.Conv1d(4, 6, 5), (4, 30)),
    (nn.Conv2d(4, 6, 3), (4, 9, 9)),
    (nn.Conv2d(4, 6, 3, groups=2), (4, 9, 9)),
    (nn.Conv3d(2, 3, 2), (2, 5, 5, 5)),
    (nn.ConvTranspose1d(4, 6, 5), (4, 30)),
    (nn.ConvTranspose2d(4, 6, 3), (4, 9, 9)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 9, 9)),
    (nn.ConvTranspose2d(4, 4, (3, 2), groups=4), (4, 9, 9)),
]


@pytest.mark.parametrize(("module", "shape"), CASES, ids=lambda value: str(value).replace("/", ""))
def test_it_is_the_number_of_weights_that_one_output_depends_on(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Counted by an output in the middle, at stride 1, with weights and inputs of ones."""
    (weight, bias) = module.parameters()
    with torch.no_grad():
        weight.fill_(1.0)
        bias.zero_()
    output = module(torch.ones(1, *shape))[0, 0]
    middle = output[tuple(size // 2 for size in output.shape)]
    assert fan_in_of(module, weight) == round(middle.item())


def test_modules_without_sums() -> None:
    assert fan_in_of(nn.Embedding(10, 4), torch.zeros(10, 4)) == 1
    assert fan_in_of(nn.LayerNorm(4), torch.zeros(4)) == 1
    assert fan_in_of(nn.Module(), torch.zeros(())) == 1
    assert fan_in_of(nn.Linear(4, 3), torch.zeros(3, 0)) == 1


def test_a_pruner_gives_each_layer_its_own() -> None:
    model = mlp()
    pruner = flipout.RelativeMagnitude(model, sgd(model), sparsity=0.5, steps=10)
    values = pruner.statistics["fan_in"]
    assert {name: value.unique().tolist() for name, value in values.items()} == {
        "0.weight": [12.0],
        "2.weight": [16.0],
        "4.weight": [8.0],
    }
    assert all(value.shape == pruner.masks[name].shape for name, value in values.items())
    assert not pruner.weights[0].statistics["fan_in"].state
    assert FanIn(torch.zeros(()), Place(fan_in=3)).value(torch.zeros(()), 0).item() == 3

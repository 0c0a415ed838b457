"""Which weights count as prunable, and which of them are live, beyond the layers of an ordinary network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import flipout
from flipout.export.costs import effective_weights, weights_to_count
from tests.helpers import sgd


@torch.no_grad()
def zero_half(tensor: Tensor) -> None:
    tensor.view(-1)[::2] = 0


def names(model: nn.Module) -> list[str]:
    return [first for first, *_ in weights_to_count(model)]


SINGLE = [
    (nn.Linear(6, 4), (2, 6)),
    (nn.Linear(6, 4), (6,)),
    (nn.Conv1d(2, 4, 3), (2, 2, 6)),
    (nn.Conv2d(2, 4, 3), (2, 2, 6, 6)),
    (nn.Conv2d(4, 4, 3, groups=2), (1, 4, 6, 6)),
    (nn.Conv2d(2, 4, 3), (2, 6, 6)),
    (nn.Conv3d(2, 4, 3), (2, 2, 6, 6, 6)),
    (nn.ConvTranspose2d(2, 4, 3), (2, 2, 6, 6)),
]


@pytest.mark.parametrize("wrap", [lambda m: m, nn.Sequential, torch.compile], ids=["bare", "sequential", "compiled"])
@pytest.mark.parametrize(("layer", "shape"), SINGLE, ids=str)
def test_a_network_of_one_layer(layer: nn.Module, shape: tuple[int, ...], wrap: Any) -> None:
    nn.init.ones_(layer.weight)  # type: ignore[arg-type]
    model = wrap(layer)
    found = effective_weights(model, torch.randn(shape))
    assert found.effective == found.nonzero == found.prunable > 0
    zero_half(layer.get_parameter("weight"))
    found = effective_weights(model, torch.randn(shape))
    assert found.effective == found.nonzero == found.prunable // 2
    pruner = flipout.Dense(model, sgd(model))
    assert pruner.summary(torch.randn(shape)).effective == found.effective
    pruner.remove()


class Tied(nn.Module):
    """Has one weight in three layers, and calls some of them."""

    def __init__(self, *called: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.third.weight = self.first.weight
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        for name in self.called:
            x = self.get_submodule(name)(x).relu()
        return x


@pytest.mark.parametrize(
    ("called", "live"),
    [
        (("first",), 12),
        (("second",), 12),
        (("third",), 12),
        (("second", "third"), 12),
        (("third", "first", "second"), 12),
        ((), 0),
    ],
)
def test_a_weight_in_three_places(called: tuple[str, ...], live: int) -> None:
    model = Tied(*called)
    nn.init.ones_(model.first.weight)
    nn.init.zeros_(model.first.weight[1])
    assert effective_weights(model, torch.randn(2, 4)).layers == {"first.weight": (12, live)}
    assert ("first.weight", "second.weight", "third.weight") in weights_to_count(model)
    pruner = flipout.Dense(model, sgd(model))
    assert pruner.summary(torch.randn(2, 4)).effective == live


def test_a_tied_weight_is_analysed_where_it_is_called() -> None:
    """Two of the four outputs are never read, whatever the name of the layer that computes them."""
    tied = Tied("third")
    nn.init.ones_(tied.first.weight)
    model = nn.Sequential(tied, nn.Linear(4, 2))
    nn.init.zeros_(model.get_parameter("1.weight")[:, :2])
    assert effective_weights(model, torch.randn(2, 4)).layers == {"0.first.weight": (16, 8), "1.weight": (4, 4)}


class GPT2Projection(nn.Module):
    """A Linear layer as GPT-2 has it: not a `nn.Linear`, and with the weight transposed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).view(*x.shape[:2], -1)


class GPT2(nn.Module):
    """A language model with tied embeddings and without any `nn.Linear` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(10, 8, padding_idx=0), nn.Embedding(6, 8)
        self.up, self.down, self.norm = GPT2Projection(8, 16), GPT2Projection(16, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(x + self.down(torch.relu(self.up(x)))))
        return logits


TOKENS = torch.arange(12).view(2, 6) % 10


def test_weights_pruned_with_include_count() -> None:
    model = GPT2()
    assert names(model) == []  # nothing that is pruned by default
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.75, steps=20, include=["up", "down"])
    assert names(model) == ["up.weight", "down.weight"]
    for _ in range(20):
        model(TOKENS).square().mean().backward()
        pruner.optimizer.step()
    found = effective_weights(model, TOKENS)
    assert (found.prunable, found.nonzero) == (256, 64)
    hidden = model.up.weight.any(0) & model.down.weight.any(1)  # with inputs and outputs
    live = int(model.up.weight[:, hidden].count_nonzero() + model.down.weight[hidden].count_nonzero())
    assert pruner.summary(TOKENS).effective == found.effective == live
    pruner.remove()
    assert effective_weights(model, TOKENS).layers == found.layers


def test_weights_with_exact_zeros_count() -> None:
    model = GPT2()
    zero_half(model.up.weight)
    assert names(model) == ["up.weight", "down.weight"]  # all weights of a class of modules
    nn.init.zeros_(model.down.weight)
    assert names(model) == ["up.weight", "down.weight"]
    zero_half(model.embed.weight)
    assert names(model) == ["embed.weight", "place.weight", "up.weight", "down.weight"]


def test_zeros_that_are_not_pruned_weights_do_not_count() -> None:
    model = GPT2()
    assert not model.embed.weight[0].any()  # the padding
    nn.init.zeros_(model.place.weight)
    assert names(model) == []


def test_a_bias_counts_if_it_is_pruned() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    assert names(model) == ["0.weight"]
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.5, steps=9, include="0.bias")
    assert names(model) == ["0.weight", "0.bias"]
    pruner.remove()


def test_recurrent_and_attention_weights() -> None:
    lstm = nn.LSTM(4, 6, batch_first=True)
    assert names(lstm) == []
    zero_half(lstm.get_parameter("weight_ih_l0"))
    found = effective_weights(lstm, torch.randn(2, 3, 4))
    assert found.layers == {"weight_ih_l0": (48, 48), "weight_hh_l0": (144, 144)}
    attention = nn.MultiheadAttention(4, 2)
    assert names(attention) == ["out_proj.weight"]
    zero_half(attention.get_parameter("in_proj_weight"))
    assert names(attention) == ["in_proj_weight", "out_proj.weight"]


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x if self.factor == 1 else x * self.factor


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_parametrized_weight_counts_once(factor: float) -> None:
    model = nn.Sequential(parametrize.register_parametrization(nn.Linear(4, 6), "weight", Scaled(factor)))
    zero_half(model.get_parameter("0.parametrizations.weight.original"))
    assert effective_weights(model, torch.randn(2, 4)).layers == {"0.weight": (12, 12)}

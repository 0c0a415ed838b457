"""LoRA adapters of PEFT: left alone, while the network below them is pruned."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, sgd

pytest.importorskip("peft")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from peft import IA3Config, LoHaConfig, LoraConfig, get_peft_model


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x).relu())
        return out


def adapted(config: Any = None) -> Any:
    return get_peft_model(Network(), config or LoraConfig(r=2, target_modules=["first", "second"]))


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for x, y in batches(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=2, target_modules=["first"]),
        LoraConfig(r=2, target_modules=["first"], use_dora=True),
        LoHaConfig(r=2, target_modules=["first"]),
        IA3Config(target_modules=["first"], feedforward_modules=[]),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_frozen_network_has_nothing_to_prune(config: Any) -> None:
    model = adapted(config)
    with pytest.raises(ValueError, match="there is nothing to prune"):
        flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=10)


def test_the_network_below_the_adapters_is_pruned() -> None:
    model = adapted()
    for name, parameter in model.named_parameters():
        if "base_layer.weight" in name:
            parameter.requires_grad_(True)
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
    assert {name.rpartition("model.")[2] for name in pruner.masks} == {
        "first.base_layer.weight",
        "second.base_layer.weight",
    }
    assert [part.kind for part in pruner.coverage().left_out if "lora" in part.name] == ["adapter"] * 4
    train(model, optimizer, 20)
    assert_masked(pruner)
    assert pruner.nonzero == round(256 * 0.1)
    assert all(bool(p.detach().any()) for name, p in model.named_parameters() if "lora_" in name)

    masks = {name.removeprefix("base_model.model.").replace(".base_layer", ""): m for name, m in pruner.masks.items()}
    merged: Any = model.merge_and_unload()  # dense again: the adapters are added to the weights
    assert bool((merged.first.weight[~masks["first.weight"]] != 0).any())
    with torch.no_grad():
        for name, mask in masks.items():
            merged.get_parameter(name).mul_(mask)
    assert int(torch.count_nonzero(merged.first.weight) + torch.count_nonzero(merged.second.weight)) <= 26


def test_a_pruned_network_keeps_its_zeros_below_new_adapters() -> None:
    network = Network()
    optimizer = sgd(network)
    flipout.GlobalMagnitude(network, optimizer, sparsity=0.9, steps=20)
    train(network, optimizer, 20)
    zeros = network.first.weight == 0
    model: Any = get_peft_model(network, LoraConfig(r=2, target_modules=["first"]))
    tuning = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    train(model, tuning, 10)
    assert torch.equal(model.get_submodule("base_model.model.first").base_layer.weight == 0, zeros)

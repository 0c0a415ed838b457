"""Keep zeros: those of a pruned network, not those that adapters start with."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import batches, cross_entropy, sgd, train


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, named as PEFT names it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(12, 4)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(12, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, 4, bias=False)})
        self.gate = nn.Linear(4, 4)
        with torch.no_grad():
            self.base.weight[:2] = 0.0
            self.get_parameter("lora_A.default.weight")[0, 0] = 0.0
            self.get_parameter("lora_B.default.weight").zero_()
            self.gate.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.base(x) + self.lora_B["default"](self.lora_A["default"](x))
        return hidden + self.gate(hidden)  # type: ignore[no-any-return]


def test_adapters_and_tensors_of_zeros_stay_trainable() -> None:
    model = Adapted()
    optimizer = sgd(model)
    left_alone = r"lora_A\.default\.weight, lora_B\.default\.weight, gate\.weight "
    with pytest.warns(flipout.KeepZerosWarning, match=left_alone) as caught:
        pruner = flipout.KeepZeros(model, optimizer)
    assert [each.filename for each in caught if each.category is flipout.KeepZerosWarning] == [__file__]
    assert pruner.nonzero == pruner.prunable - 24
    train(model, optimizer, 5)
    assert not model.base.weight[:2].any()
    for name in ("lora_A.default.weight", "lora_B.default.weight", "gate.weight"):
        assert model.get_parameter(name).detach().all(), name


def test_include_keeps_every_zero() -> None:
    model = Adapted()
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.KeepZerosWarning)
        pruner = flipout.KeepZeros(model, sgd(model), include="*")
    assert {name: int((~mask).sum()) for name, mask in pruner.masks.items()} == {
        "base.weight": 24,
        "lora_A.default.weight": 1,
        "lora_B.default.weight": 12,
        "gate.weight": 16,
    }
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    pruner.optimizer.step()
    assert not model.gate.weight.any()

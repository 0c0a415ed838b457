"""Which weights are pruned, under which names."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.weights import find_weights
from tests.helpers import mlp, sgd


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 6)
        self.conv = nn.Conv1d(6, 4, 3)
        self.up = nn.ConvTranspose2d(4, 2, 2)
        self.norm = nn.LayerNorm(4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)])
        self.attention = nn.MultiheadAttention(4, 2)
        self.scale = nn.Parameter(torch.ones(()))
        self.table = nn.Parameter(torch.ones(3, 3))


def names(model: nn.Module, **options: Any) -> list[str]:
    found = find_weights(model, sgd(model), options.get("include"), options.get("exclude"))
    every = [id(parameter) for parameter in model.parameters()]
    assert [weight.number for weight in found] == [every.index(id(weight.parameter)) for weight in found]
    return [weight.name for weight in found]


def test_by_default_the_weights_of_modules_that_torch_has() -> None:
    assert names(Mixed()) == [
        "conv.weight",
        "up.weight",
        "blocks.0.0.weight",
        "blocks.1.0.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": "embed.weight"}, ["embed.weight"]),
        ({"include": "embed"}, ["embed.weight"]),
        ({"include": ["conv", "up.*"]}, ["conv.weight", "up.weight"]),
        ({"include": "blocks.1"}, ["blocks.1.0.weight"]),
        ({"include": "blocks.*"}, ["blocks.0.0.weight", "blocks.1.0.weight"]),
        ({"include": "*.bias", "exclude": ["blocks", "attention", "norm"]}, ["conv.bias", "up.bias"]),
        ({"include": "norm"}, ["norm.weight", "norm.bias"]),
        ({"include": "table"}, ["table"]),
        ({"include": ["conv.weight", "conv.bias"]}, ["conv.weight", "conv.bias"]),
        ({"include": lambda name, module, parameter: isinstance(module, nn.Conv1d)}, ["conv.weight"]),
        ({"include": lambda name, module, parameter: name == "scale"}, ["scale"]),
        (
            {"exclude": "blocks"},
            ["conv.weight", "up.weight", "attention.in_proj_weight", "attention.out_proj.weight"],
        ),
        ({"exclude": ["blocks.*.0", "att*"]}, ["conv.weight", "up.weight"]),
        ({"exclude": lambda name, module, parameter: parameter.ndim == 2}, ["conv.weight", "up.weight"]),
        ({"include": ("blocks", "conv"), "exclude": "conv"}, ["blocks.0.0.weight", "blocks.1.0.weight"]),
    ],
)
def test_include_and_exclude(options: dict[str, Any], expected: list[str]) -> None:
    assert names(Mixed(), **options) == expected


@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_suggests_what_would(argument: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument}='block\.0\.0\.weigth' .*blocks\.0\.0\.weight"):
        names(Mixed(), **{argument: "block.0.0.weigth"})


def test_nothing_to_prune() -> None:
    with pytest.raises(ValueError, match=r"LayerNorm.*include="):
        names(nn.LayerNorm(4))
    model = mlp()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match=r"Sequential .*3 matched.*frozen"):
        find_weights(model, torch.optim.SGD(model.parameters(), 0.1), None, None)


def test_a_weight_that_the_optimizer_does_not_hold() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    with pytest.raises(ValueError, match=r"optimizer .*2\.weight, 4\.weight.*exclude="):
        flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)
    assert flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10, exclude=["2", "4"]).prunable == 192


def test_only_real_numbers() -> None:
    model = nn.Linear(3, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="real floating-point"):
        names(model)


class Wrapped(nn.Module):
    """A model of the user's that has a part called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.compiled = torch.compile(nn.Linear(3, 3), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.compiled(self.module(x))
        return out


def test_names_without_the_prefixes_of_wrappers() -> None:
    plain = ["module.weight", "compiled.weight"]
    assert names(Wrapped()) == plain
    assert names(torch.compile(Wrapped(), backend="eager")) == plain  # type: ignore[arg-type]
    assert names(nn.DataParallel(Wrapped())) == plain
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        parallel = nn.parallel.DistributedDataParallel(Wrapped())
        assert names(parallel) == plain
        assert names(torch.compile(parallel, backend="eager")) == plain  # type: ignore[arg-type]
    finally:
        torch.distributed.destroy_process_group()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(4, 2)


def test_a_shared_weight_answers_to_each_of_its_names() -> None:
    assert names(Tied()) == ["encoder.weight", "head.weight"]
    assert names(Tied(), exclude="decoder") == ["head.weight"]
    assert names(Tied(), include="decoder.weight") == ["encoder.weight"]
    model = Tied()
    assert names(model, exclude=lambda name, module, parameter: module is model.decoder) == ["head.weight"]


def test_excluding_everything_says_so() -> None:
    with pytest.raises(ValueError, match="exclude="):
        names(mlp(), exclude="*")

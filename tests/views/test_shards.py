"""Sharded weights: the same masks, counts and events as the same training on one device, whatever the layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import flipout
from tests.helpers import mlp, sgd

from .shard_scenarios import ON_FOUR, ON_TWO

HERE = Path(__file__).parent


def messages(ranks: int, folder: Path) -> list[dict[str, str]]:
    """What each rank reports, for all scenarios in one set of processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", str(HERE / "shard_scenarios.py")]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(folder)], env=environment, stdout=subprocess.DEVNULL)
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=900) for process in processes] == [0] * ranks
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return messages(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return messages(4, tmp_path_factory.mktemp("four"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ON_TWO)
def test_two_ranks(on_two_ranks: list[dict[str, str]], scenario: str) -> None:
    assert [rank.get(scenario, "did not run") for rank in on_two_ranks] == [""] * 2


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ON_FOUR)
def test_four_ranks(on_four_ranks: list[dict[str, str]], scenario: str) -> None:
    assert [rank.get(scenario, "did not run") for rank in on_four_ranks] == [""] * 4


def test_fsdp1_is_refused_by_name() -> None:
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # its constructor needs an accelerator
    nn.Module.__init__(wrapper)
    model = nn.Sequential(mlp(), wrapper)
    with pytest.raises(ValueError, match=r"FSDP1.*fully_shard"):
        flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=100)


def test_an_ordinary_weight_is_its_own_view() -> None:
    model = mlp()
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.5, steps=10)
    for weight in pruner.weights:
        assert weight.local is weight.parameter
        assert weight.view.key is None
        assert pruner.masks[weight.name] is weight.mask
        assert weight.size == torch.numel(weight.parameter)

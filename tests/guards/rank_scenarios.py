"""Trainings on two ranks that differ in one respect. Run as a script by each rank of `tests/guards/test_ranks.py`."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch import Tensor, nn

import flipout
from flipout.units import DeadFirst
from tests.helpers import batches, make, mlp, sgd, train


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def go(model: nn.Module, pruner: flipout.Pruner, rank: int, steps: int = 40) -> None:
    try:
        train(model, pruner.optimizer, steps, seed=rank)
    finally:
        pruner.remove()


def alike(rank: int) -> None:
    model = ddp(mlp(seed=rank))
    go(model, make("flipout", model, sgd(model)), rank)


def dead_first(rank: int) -> None:
    """The examples of a rank are its own, but liveness depends on the masks alone."""
    model = ddp(mlp(seed=rank))
    pruner = make("magnitude", model, sgd(model), sparsity=0.95, dead_first=True)
    go(model, pruner, rank)
    assert isinstance(pruner.dead, DeadFirst)
    assert pruner.dead.call.arguments is not None


def larger_units(rank: int) -> None:
    """The channels that a rank finds do not depend on its examples."""
    units: list[tuple[str, float]] = [("channel", 0.6), ("4x4", 0.7), ("2:4", 0.5)]
    for granularity, sparsity in units:
        model = ddp(mlp(seed=rank))
        pruner = make("flipout", model, sgd(model), sparsity=sparsity, granularity=granularity)
        go(model, pruner, rank)
        assert pruner.finished


def latents(rank: int) -> None:
    """The noise, the latents and the Fisher are the same on every rank."""
    for method in ("variational-dropout", "l0", "dynamic-sparse-training", "obs"):
        model = ddp(mlp(seed=rank))
        pruner = make(method, model, sgd(model))
        go(model, pruner, rank)
        assert pruner.nonzero == 35


def other_seeds(rank: int) -> None:
    model = ddp(mlp())
    go(model, make("random", model, sgd(model), seed=rank), rank)


def attached_before_ddp(rank: int) -> None:
    model = mlp(seed=rank)
    make("snip", model, sgd(model), data=list(batches(2)))


def without_ddp(rank: int) -> None:
    model = mlp(seed=rank)
    go(model, make("magnitude", model, sgd(model)), rank)


def own_data(rank: int) -> None:
    model = ddp(mlp())

    def criterion(weight: Tensor) -> Tensor:
        return weight.abs() * torch.rand(weight.shape, generator=torch.Generator().manual_seed(rank))

    schedule = flipout.OneShot(0.5, 10, at=0.5)
    go(model, flipout.Pruner(model, sgd(model), criterion=criterion, schedule=schedule), rank)


def other_states(rank: int) -> None:
    source = mlp()
    optimizer = sgd(source)
    finished = flipout.GlobalMagnitude(source, optimizer, sparsity=0.5, steps=40)
    finished.check_ranks = False
    train(source, optimizer, 9, seed=rank)
    state = finished.state_dict()
    finished.remove()
    model = ddp(mlp())
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.5, steps=40)
    pruner.load_state_dict(state)
    go(model, pruner, rank)


def keep_zeros_before_ddp(rank: int) -> None:
    """The weights that DDP broadcasts are those that count."""
    model = mlp(seed=rank)
    with torch.no_grad():
        model.get_parameter("0.weight")[rank : 2 * rank + 1] = 0
    optimizer = sgd(model)
    pruner = flipout.KeepZeros(model, optimizer)
    go(ddp(model), pruner, rank, steps=2)
    assert not pruner.masks["0.weight"][0].any()
    assert pruner.masks["0.weight"][1:].all()


def keep_zeros_without_ddp(rank: int) -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("0.weight")[rank] = 0
    go(model, flipout.KeepZeros(model, sgd(model)), rank)


def switched_off(rank: int) -> None:
    model = ddp(mlp())
    flipout.Pruner.check_ranks = False
    try:
        go(model, make("random", model, sgd(model), seed=rank), rank)
    finally:
        flipout.Pruner.check_ranks = True


def different_networks(rank: int) -> None:
    """As in pipeline parallelism: every rank prunes its own part."""
    model = nn.Sequential(nn.Linear(12, 5 + rank), nn.Linear(5 + rank, 4))
    go(model, make("magnitude", model, sgd(model)), rank)


def resumed_within_an_epoch(rank: int) -> None:
    """New processes would do the same: everything is made anew and loaded, on every rank, between any two steps."""
    for method in ("flipout", "flipout-paper", "rigl"):
        whole = ddp(mlp())
        its_pruner = make(method, whole, sgd(whole))
        train(whole, its_pruner.optimizer, 40, seed=rank)
        model = ddp(mlp())
        pruner = make(method, model, sgd(model))
        train(model, pruner.optimizer, 13, seed=rank)
        file = io.BytesIO()
        torch.save([model.state_dict(), pruner.optimizer.state_dict(), pruner.state_dict()], file)
        file.seek(0)
        weights, optimizer, state = torch.load(file, weights_only=True)
        resumed = ddp(mlp(seed=rank))
        pruner = make(method, resumed, sgd(resumed))
        resumed.load_state_dict(weights)
        pruner.optimizer.load_state_dict(optimizer)
        pruner.load_state_dict(state)
        train(resumed, pruner.optimizer, 40, seed=rank, skip=13)
        assert pruner.events == its_pruner.events, method
        for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(one, other), method


SCENARIOS: list[Callable[[int], None]] = [
    alike,
    dead_first,
    larger_units,
    latents,
    other_seeds,
    attached_before_ddp,
    without_ddp,
    own_data,
    other_states,
    keep_zeros_before_ddp,
    keep_zeros_without_ddp,
    switched_off,
    different_networks,
    resumed_within_an_epoch,
]


def main(rank: int, folder: Path) -> None:
    store = torch.distributed.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, store=store, timeout=timedelta(seconds=60))
    messages: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            scenario(rank)
            messages[scenario.__name__] = ""
        except Exception as error:
            messages[scenario.__name__] = f"{type(error).__name__}: {error}"
    (folder / f"{rank}.json").write_text(json.dumps(messages), encoding="utf-8")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that is shut down


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

"""Clipping on two ranks, under DistributedDataParallel and FSDP2. Run as a script by each rank."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

import flipout
from flipout.views.dtensors import local_of
from tests.helpers import make, mlp
from tests.runtime.clipping import HUGE, OPTIMIZERS, train_clipped

TRAININGS = (("flipout", "sgd"), ("flipout", "adamw"), ("magnitude", "sgd"), ("rigl", "sgd"))


def ddp(hook: Any = None) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(mlp())
    if hook is not None:
        model.register_comm_hook(None, hook)
    return model


def fsdp() -> nn.Module:
    model = mlp()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def trained(wrapped: Callable[[], nn.Module], method: str, optimizer: str, max_norm: float | None) -> flipout.Pruner:
    model = wrapped()
    pruner = make(method, model, OPTIMIZERS[optimizer](model), steps=20)
    train_clipped(model, pruner, max_norm, seed=torch.distributed.get_rank())
    assert pruner.finished
    assert not pruner.lost_zeros()
    return pruner


def clipping_sees_kept_weights(wrapped: Callable[[], nn.Module]) -> None:
    """`train_clipped` compares each norm; a limit that is never reached changes no bit."""
    for method, optimizer in TRAININGS:
        plain, huge = (trained(wrapped, method, optimizer, limit) for limit in (None, HUGE))
        for one, other in zip(plain.weights, huge.weights, strict=True):
            assert torch.equal(local_of(one.parameter), local_of(other.parameter)), (method, optimizer, one.name)
    trained(wrapped, "flipout", "sgd", 0.02)


def communication_hooks() -> None:
    """One that compresses to half precision is warned of; one that keeps the range of float32 is not."""
    for hook, warned in ((default_hooks.fp16_compress_hook, 1), (default_hooks.allreduce_hook, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained(lambda hook=hook: ddp(hook), "flipout", "sgd", None)  # type: ignore[misc]
        assert sum(w.category is flipout.LostGradientsWarning for w in caught) == warned, hook


def main(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder / 'store'}")
    clipping_sees_kept_weights(ddp)
    clipping_sees_kept_weights(fsdp)
    communication_hooks()
    torch.distributed.barrier()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # gloo's threads sometimes keep an interpreter from ending

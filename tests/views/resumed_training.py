"""A training that is saved with `torch.distributed.checkpoint`, killed, and resumed on other numbers of ranks.

Run as a script by each rank: rank, ranks, folder, layout, method, and "start" or "resume".
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import flipout
from tests.views.sharded_training import LAYOUTS, SUMMING, compare, network, prune, train

SAVED, KILLED = 20, 27


def save(pruner: flipout.Pruner, path: Path) -> None:
    weights, moments = get_state_dict(pruner.model, pruner.optimizer)
    state_dict_saver.save({"model": weights, "optimizer": moments, "pruner": pruner}, checkpoint_id=path)


def load(pruner: flipout.Pruner, path: Path, *, pruner_first: bool) -> None:
    if pruner_first:
        state_dict_loader.load({"pruner": pruner}, checkpoint_id=path)
    weights, moments = get_state_dict(pruner.model, pruner.optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(pruner.model, pruner.optimizer, model_state_dict=weights, optim_state_dict=moments)
    if not pruner_first:
        state_dict_loader.load({"pruner": pruner}, checkpoint_id=path)


def main(rank: int, ranks: int, folder: Path, layout: str, methods: list[str], phase: str) -> None:
    warnings.simplefilter("ignore")
    store = torch.distributed.FileStore(str(folder / f"store-{phase}-{ranks}-{layout}"), ranks)  # type: ignore[attr-defined]
    limit = timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=limit)
    for number, method in enumerate(methods):
        pruner = prune(LAYOUTS[layout](0 if phase == "start" else 5), method, optimizer="adamw", compile=False)
        if phase == "start":
            train(pruner, SAVED)
            save(pruner, folder / method)
            train(pruner, KILLED, skip=SAVED)
            if number == len(methods) - 1:
                torch.distributed.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
        load(pruner, folder / method, pruner_first=bool(number % 2))
        if phase == "resume":
            assert (pruner.step, pruner.model is not None) == (SAVED, True)
            train(pruner, skip=SAVED)
            flipout.Pruner.check_ranks = False
            train(expected := prune(network(), method, optimizer="adamw", compile=False))
            flipout.Pruner.check_ranks = True
            compare(pruner, expected, bits=layout != "both" and method not in SUMMING)
    (folder / f"{phase}-{ranks}-{layout}-{rank}.done").touch()
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that is shut down


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5].split(","), sys.argv[6])

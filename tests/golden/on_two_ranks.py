"""Train configurations with sharded weights on two ranks. Each rank runs `python -m tests.golden.on_two_ranks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from .configurations import CONFIGURATIONS
from .training import Trained, train

RANKS = 2
ROOT = Path(__file__).parent.parent.parent


def train_on_two_ranks(names: Sequence[str]) -> dict[str, Trained]:
    """Train configurations, all in the same two processes. The looks of rank 0 come before those of rank 1."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", __name__]
    with TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen([*command, str(rank), folder, *names], env=environment, cwd=ROOT) for rank in range(RANKS)
        ]
        codes = [process.wait(timeout=300) for process in processes]
        assert codes == [0] * RANKS, f"the exit codes of the ranks are {codes}"
        results = [json.loads((Path(folder) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    for rank, result in enumerate(results):
        for kinds in result.values():
            for look in (look for looks in kinds for look in looks):
                look["rank"] = rank
    return {
        name: Trained(*([look for result in results for look in result[name][kind]] for kind in range(2)))
        for name in results[0]
    }


def main(rank: int, folder: Path, names: list[str]) -> None:
    store = torch.distributed.FileStore(str(folder / "store"), RANKS)  # type: ignore[attr-defined]
    limit = timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS, store=store, timeout=limit)
    results = {name: train(CONFIGURATIONS[name]) for name in names}
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that is shut down


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

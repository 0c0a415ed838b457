"""The file with the state of a pruner in a checkpoint folder of the Hugging Face Trainer."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..atomic_files import replacing


def checkpoint_folder(output: str | Path | None, step: int) -> Path:
    """The folder of a checkpoint below the Trainer's output folder, or below that of a trial of its search."""
    name, top = f"checkpoint-{step}", Path(output or ".")
    trials = sorted(top.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime)
    return trials[-1] if trials and not (top / name).is_dir() else top / name


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state: the file is complete, or does not exist."""
    with replacing(path) as temporary:
        torch.save(dict(state), temporary)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state. Nothing but tensors and plain data is unpickled."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read; resume from another checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is not the state of a Prune callback, but a {type(state).__name__}")
    return state


def find_state(folders: Iterable[Path | None], name: str) -> Path | None:
    """The first file of a name in the folders."""
    return next((path for folder in folders if folder and (path := folder / name).is_file()), None)

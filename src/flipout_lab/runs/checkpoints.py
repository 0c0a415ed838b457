"""Checkpoints: written atomically and verified by a digest. The last two are kept."""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from ..errors import LabError
from ..files import open_replacement

KEPT = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, then remove all but the last two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    folder.mkdir(exist_ok=True)
    with open_replacement(folder / f"step-{step:010}.ckpt") as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)
    for old in _paths(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that is not damaged, or None."""
    for path in reversed(_paths(folder)):
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            try:
                state: dict[str, Any] = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
                raise LabError(f"the checkpoint {path} is not one of a run ({error}); delete it") from error
            return state
        warnings.warn(f"the checkpoint {path} is damaged; resuming from the one before it", stacklevel=2)
    return None


def sizes(folder: Path) -> list[int]:
    """Return the size of every checkpoint in bytes."""
    return [path.stat().st_size for path in _paths(folder)]


def remove(folder: Path) -> None:
    """Remove all checkpoints."""
    for path in _paths(folder):
        path.unlink(missing_ok=True)


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))

"""The folder of a run: what is in it, who may write to it, and what was asked for there."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch

import flipout
from flipout.plain_data import difference

from ..errors import BusyError, LabError
from ..files import read_json
from .settings import Settings, validated

CONFIG, METRICS, RESULT, MODEL, CHECKPOINTS, LOCK = (
    "config.json",
    "metrics.jsonl",
    "result.json",
    "model.safetensors",
    "checkpoint",
    "run.lock",
)


def read_settings(folder: Path) -> Settings:
    """The settings of a run."""
    if not (folder / CONFIG).exists():
        raise LabError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    return validated(read_json(folder / CONFIG).get("settings", {}))


def versions() -> dict[str, Any]:
    """What a run depends on besides its settings."""
    return {
        "flipout": flipout.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def prepare_folder(folder: Path) -> None:
    """Makes the folder, and finds out now whether it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise LabError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from error


def compare(folder: Path, settings: Settings) -> None:
    """Refuses to go on in a folder that holds a run with other settings."""
    if not (folder / CONFIG).exists():
        return
    saved = read_json(folder / CONFIG)
    if lines := difference(saved.get("settings"), settings.described()):
        told = "\n  ".join(line.replace(" in the state, ", " there, ") for line in lines)
        raise LabError(f"{folder} holds a run with other settings; choose another --out:\n  {told}")
    was, now = saved.get("versions", {}), versions()
    if settings.threads is None and was.get("threads") != now["threads"] and not (folder / RESULT).exists():
        warnings.warn(
            f"this run was started with {was.get('threads')} threads and goes on with {now['threads']}: its last bits "
            "may differ from those of a run in one go (--threads fixes their number)",
            stacklevel=3,
        )


@contextmanager
def locked(path: Path, what: str = "process is training", patience: float = 0.0) -> Iterator[None]:
    """One process to a folder, by a file in it. The system gives the lock back however its holder dies."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except filelock.Timeout as error:
        raise BusyError(f"another {what} in {path.parent}; wait for it, or choose another --out") from error
    try:
        yield
    finally:
        lock.release()

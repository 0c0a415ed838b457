"""Numbers that are measured once on a machine, so that all trainings on it decide the same.

Each number is a small file. The first process that has measured a number writes it, and all others read it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

_known: dict[Path, float] = {}  # where no file can be written


def folder() -> Path:
    """`$FLIPOUT_CACHE`, or `flipout` in the user's cache folder. Delete `speed` in it to measure again."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("FLIPOUT_CACHE") or f"{caches}/flipout").expanduser() / "speed"


def remembered(key: str, measure: Callable[[], float]) -> float:
    """The number of a key on this machine; it is measured if no process has done so before."""
    path = folder() / hashlib.sha256(f"{machine()}, {key}".encode()).hexdigest()[:24]
    if path not in _known:
        found = _read(path)
        _known[path] = _write(path, measure()) if found is None else found
    return _known[path]


@lru_cache(maxsize=1)
def machine() -> str:
    """What a measured speed depends on, beside the work."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    processor = next((line for line in lines if line.startswith("model name")), platform.processor())
    return f"{platform.machine()}, {processor}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def _read(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, number: float) -> float:
    """Write a number, unless another process has just done so; return the one that counts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(repr(number))
            file.flush()
            os.link(file.name, path)  # which fails if there is one
    except FileExistsError:
        found = _read(path)
        return number if found is None else found
    except OSError:
        pass  # nothing can be written there: this process remembers it
    return number

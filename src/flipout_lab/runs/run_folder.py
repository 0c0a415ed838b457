"""The folder of a run: its files, its lock, and the settings that are stored in it."""

from __future__ import annotations

import json
import platform
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch

import flipout

from .. import data
from ..errors import BusyError, LabError
from ..files import write_json
from ..stored_formats import ConfigFormat, EpochFormat, ResultFormat, check_format, read_stored
from .settings import Settings, validated

CONFIG, METRICS, RESULT, MODEL, CHECKPOINTS, LOCK = (
    "config.json",
    "metrics.jsonl",
    "result.json",
    "model.safetensors",
    "checkpoint",
    "run.lock",
)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of `config.json`: settings, versions, and the shape of the network."""
    if not (folder / CONFIG).exists():
        raise LabError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    return read_stored(folder / CONFIG, ConfigFormat, f"restore it, or delete {folder} to start the run again")


def read_result(folder: Path) -> dict[str, Any]:
    """Return the content of `result.json`."""
    return read_stored(folder / RESULT, ResultFormat, "delete it and run the same command again to restore it")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`; none if the run has not finished an epoch."""
    path, lines = folder / METRICS, []
    if not path.exists():
        return []
    advice = "move it away to read the run without its epochs"
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            content = json.loads(line)
            check_format(content, EpochFormat, f"line {number} of {path}", advice)
            lines.append(content)
    except (ValueError, OSError, RecursionError) as error:
        raise LabError(f"{path} is damaged ({error}); {advice}") from error
    return lines


def read_settings(folder: Path) -> Settings:
    """Return the settings of a run. Its data and its method need not be available on this machine."""
    return validated(read_config(folder)["settings"], stored=True)


def network_shape(folder: Path) -> tuple[tuple[int, int, int], int]:
    """Return the shape of an input image and the number of classes.

    A run of an older version does not store them; then the data set is read.
    """
    network: Any = read_config(folder).get("network")
    if network is not None:
        channels, height, width = network["shape"]
        return (channels, height, width), network["classes"]
    settings = read_settings(folder)
    loaded = data.load(settings.data, settings.image_size)
    return loaded.shape, loaded.classes


def write_config(folder: Path, settings: Settings, loaded: data.Data) -> None:
    """Write `config.json`."""
    network = {"shape": list(loaded.shape), "classes": loaded.classes}
    write_json(folder / CONFIG, {"settings": settings.as_dict(), "network": network, "versions": versions()})


def versions() -> dict[str, Any]:
    """Return the versions that a run depends on, and the number of threads."""
    return {
        "flipout": flipout.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def prepare_folder(folder: Path) -> None:
    """Create the folder, and check that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Of a unique name, because several processes may start in one folder. The name is that of a leftover file: if
        # this process is killed here, the next one removes the probe.
        probe = folder / f".probe.{uuid.uuid4().hex}.part"
        probe.write_bytes(b"x" * 4096)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise LabError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from error


def compare(folder: Path, settings: Settings) -> None:
    """Refuse to continue in a folder that holds a run with other settings.

    A setting that is not stored, by an older version, has its default value.
    """
    if not (folder / CONFIG).exists():
        return
    saved, stored = read_config(folder), read_settings(folder)
    there, here = stored.non_defaults(), settings.non_defaults()
    # In the order of the settings, then what is only there. (None is a value of the sparsity.)
    if keys := [key for key in {**settings.as_dict(), **there} if there.get(key, ...) != here.get(key, ...)]:
        lines = (f"{key}: {_value(stored, key)} there, {_value(settings, key)} here" for key in keys)
        raise LabError(f"{folder} holds a run with other settings; choose another --out:\n  " + "\n  ".join(lines))
    was, now = saved["versions"], versions()
    if settings.threads is None and was.get("threads") != now["threads"] and not (folder / RESULT).exists():
        warnings.warn(
            f"this run was started with {was.get('threads')} threads and continues with {now['threads']}: its weights "
            "may differ in the last bits from those of an uninterrupted run (--threads fixes the number)",
            stacklevel=3,
        )


def _value(settings: Settings, key: str) -> Any:
    return settings.as_dict().get(key, "not a setting")


@contextmanager
def locked(path: Path, what: str = "process is training", patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file, so that one process at a time works in a folder. The system releases the lock of a process
    that dies."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except filelock.Timeout as error:
        raise BusyError(f"another {what} in {path.parent}; wait for it, or choose another --out") from error
    try:
        yield
    finally:
        lock.release()

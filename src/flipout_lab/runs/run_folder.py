"""The folder of a run: its files, its lock, and the settings that are stored in it."""

from __future__ import annotations

import hashlib
import io
import pickle
import platform
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from safetensors.torch import save as safetensors_bytes
from torch import nn

import flipout
from flipout.export.costs import dense_state

from .. import data
from ..errors import BusyError, LabError
from ..files import open_replacement, write_json
from ..stored_formats import CONFIG_FORMAT, EPOCH_FORMAT, RESULT_FORMAT, parse_stored, read_stored
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
        raise LabError(
            f"{folder} is not the folder of a run: it has no {CONFIG}. Give a folder that flipout train wrote"
        )
    return read_stored(folder / CONFIG, CONFIG_FORMAT, f"restore it, or delete {folder} to start the run again")


def read_result(folder: Path) -> dict[str, Any]:
    return read_stored(folder / RESULT, RESULT_FORMAT, "delete it and run the same command again to restore it")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`; none if the run has not finished an epoch."""
    path = folder / METRICS
    lines = path.read_bytes().splitlines() if path.exists() else []
    advice = "move it away to read the run without its epochs"
    return [parse_stored(line, EPOCH_FORMAT, f"line {i} of {path}", advice) for i, line in enumerate(lines, 1)]


def accuracy_in(measured: Mapping[str, Any]) -> float:
    """Return the accuracy of a result or of an epoch, on test data or else on validation data."""
    test = measured["test_accuracy"]
    return float(measured["validation_accuracy"] if test is None else test)


def read_settings(folder: Path) -> Settings:
    """Return the settings of a run. Its data and its method need not be available on this machine."""
    return validated(read_config(folder)["settings"], stored=True)


def network_shape(folder: Path) -> tuple[tuple[int, int, int], int]:
    network: Any = read_config(folder)["network"]
    channels, height, width = network["shape"]
    return (channels, height, width), network["classes"]


def write_config(folder: Path, settings: Settings, loaded: data.Data, **more: Any) -> None:
    network = {"shape": list(loaded.shape), "classes": loaded.classes}
    write_json(folder / CONFIG, {"settings": settings.as_dict(), "network": network, "versions": versions(), **more})


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


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file into a model. Every weight must be in the file, with the right shape."""
    try:
        load_model(model, path)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path} cannot be read as safetensors: {error}") from error
    except RuntimeError as error:
        raise LabError(f"{path} does not fit {type(model).__name__}: {error}") from error


def model_bytes(model: nn.Module) -> bytes:
    """Return the state of a model as safetensors: the same bytes for the same weights, shared tensors once."""
    return safetensors_bytes(dense_state(model), metadata={"format": "pt"})


KEPT_CHECKPOINTS = 2


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    folder.mkdir(exist_ok=True)
    with open_replacement(folder / f"step-{step:010}.ckpt") as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)
    for old in _checkpoints(folder)[:-KEPT_CHECKPOINTS]:
        old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that is not damaged, or None."""
    for path in reversed(_checkpoints(folder)):
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


def remove_checkpoints(folder: Path) -> None:
    for path in _checkpoints(folder):
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))

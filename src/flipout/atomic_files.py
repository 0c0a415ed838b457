"""Write files atomically: a file is complete or does not exist."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` at the end, after all of it is on the disk.

    The temporary file is in the same folder. Its name is unique for each call, so that processes and threads do not
    interfere, and keeps the suffix, because some writers depend on it. If an error is raised, it is removed and `path`
    is unchanged.
    """
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.part{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def leftover_files(folder: Path) -> list[Path]:
    """Return the temporary files in a folder. If no process is writing, killed processes left them behind."""
    found = (*folder.glob(".*.part"), *folder.glob(".*.part.*"))  # without and with a suffix
    return [path for path in found if path.is_file()]


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system allows this
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

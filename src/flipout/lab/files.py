"""Files of the lab, written atomically: a full disk is a LabError. JSON files, and leftovers of killed processes."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..atomic_files import leftover_files, replacing
from .errors import LabError


@contextlib.contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that replaces `path` atomically at the end."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            yield file
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LabError(
                f"the disk is full: {path} could not be written. What was there before is unharmed; free some space "
                "and run the same command again to continue"
            ) from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    with open_replacement(path) as file:
        file.write(content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise LabError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LabError(f"{path} does not hold an object")
    return content


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete files that a killed process left in a folder."""
    for path in leftover_files(folder):
        path.unlink(missing_ok=True)

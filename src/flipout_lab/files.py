"""Files of the lab, written atomically: a full disk is a LabError. JSON files, and leftovers of killed processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, BinaryIO

from flipout.atomic_files import leftover_files, replacing

from .errors import LabError


@contextlib.contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into a LabError. `path` is the file or folder that is written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise LabError(
            f"the disk is full: {path} could not be written. What was there before is unharmed; free some space "
            "and run the same command again to continue"
        ) from error


@contextlib.contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that replaces `path` atomically at the end."""
    with full_disk_explained(path), replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def write_bytes(path: Path, content: bytes) -> None:
    with open_replacement(path) as file:
        file.write(content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_toml(path: Path | Traversable, what: str) -> dict[str, Any]:
    """Read a TOML file. `what` names it in errors."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also of text that is not UTF-8
        raise LabError(f"{what} is not valid TOML: {error}") from error
    except OSError as error:
        raise LabError(f"{what} cannot be read: {error.strerror}") from error


def is_file(name: str | Path) -> bool:
    """Whether a name is that of a file. A name that no file can have is not an error, as it is for a Path."""
    return os.path.isfile(name)  # noqa: PTH113


def is_folder(name: str | Path) -> bool:
    """Whether a name is that of a folder. A name that no folder can have is not an error."""
    return os.path.isdir(name)  # noqa: PTH112


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete files that a killed process left in a folder."""
    for path in leftover_files(folder):
        path.unlink(missing_ok=True)

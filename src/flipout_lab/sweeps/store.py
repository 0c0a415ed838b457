"""Where the runs of a sweep are stored: a folder, or any URL that fsspec supports (s3://, gs://, file://)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec

from ..errors import LabError
from ..files import remove_leftovers, write_bytes
from ..runs.run_folder import CHECKPOINTS, RESULT
from ..stored_formats import Format, parse_stored


class Store:
    """A folder on this machine, one that all machines share, or a URL."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") if is_url(location) else str(Path(location).resolve())
        self.files, self.path = _file_system(self.location)

    def __str__(self) -> str:
        return self.location

    def prepare(self) -> None:
        """Create the store. Raise an error if it is not writable."""
        try:
            self.files.makedirs(self.path, exist_ok=True)
            probe = f"{self.path}/.probe.{uuid.uuid4().hex}.part"  # several sweeps may start at the same time
            self.files.pipe_file(probe, b"x")
            self.files.rm_file(probe)
        except Exception as error:  # every kind of storage raises its own errors
            raise LabError(f"{self} cannot be written to ({error}); choose another --out") from error

    def run_location(self, run: str) -> str:
        return f"{self.location}/{run}"

    def has(self, path: str) -> bool:
        return bool(self.files.exists(f"{self.path}/{path}"))

    def read(self, path: str, expected: Format, advice: str) -> dict[str, Any]:
        """Read a JSON file that has a format."""
        return parse_stored(self.files.cat_file(f"{self.path}/{path}"), expected, f"{self}/{path}", advice)

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        _write_file(self.files, f"{self.path}/{path}", (json.dumps(content, indent=2) + "\n").encode())

    def remove(self, path: str) -> None:
        if self.has(path):
            self.files.rm_file(f"{self.path}/{path}")


class RunMirror:
    """Keep a copy of a run at a URL: fetched before the run starts, updated after every epoch. It is a tracker."""

    def __init__(self, url: str, folder: Path) -> None:
        self.files, self.path = _file_system(url)
        self.folder = folder

    def fetch(self, wanted: Callable[[str], bool] = lambda _: True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in filter(wanted, self._remote_files()):
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.files.cat_file(f"{self.path}/{path}"))

    def push(self) -> None:
        """Copy new files to the URL and remove old checkpoints there.

        The result is copied last, because its presence means that the run is complete.
        """
        remove_leftovers(self.folder)
        local = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        remote = self._remote_files()
        if RESULT in remote and RESULT not in local:
            return  # another attempt finished first; its files stay unchanged
        for name in sorted(local, key=lambda name: (name == RESULT, not name.startswith(CHECKPOINTS), name)):
            copied = name.startswith(CHECKPOINTS) and remote.get(name) == local[name].stat().st_size
            if copied or name.endswith(".lock"):
                continue
            _write_file(self.files, f"{self.path}/{name}", local[name].read_bytes())
        for name in remote:
            if name.startswith(CHECKPOINTS) and name not in local:
                self.files.rm_file(f"{self.path}/{name}")

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        self.push()

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.push()

    def finish(self, result: Mapping[str, Any]) -> None:
        self.push()

    def _remote_files(self) -> dict[str, int]:
        self.files.invalidate_cache()
        found = self.files.find(self.path, detail=True) if self.files.exists(self.path) else {}
        return {str(path).removeprefix(self.path).lstrip("/"): int(info["size"]) for path, info in found.items()}


def _write_file(files: Any, path: str, content: bytes) -> None:
    """Write a complete file or none. Object stores do that by themselves."""
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    if "file" in files.protocol:
        write_bytes(Path(path), content)
    else:
        files.pipe_file(path, content)


def is_url(location: str) -> bool:
    return "://" in location


def _file_system(location: str) -> tuple[Any, str]:
    try:
        files, path = fsspec.core.url_to_fs(location)
    except (ValueError, ImportError) as error:
        raise LabError(f"{location} cannot be opened: {error}") from error
    return files, path.rstrip("/")

"""Where the runs of a sweep are stored: a folder, or any URL that fsspec supports (s3://, gs://, file://)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..files import read_json, remove_leftovers, write_json
from ..runs.run_folder import CHECKPOINTS, RESULT, prepare_folder


class Store:
    """A folder on this machine, or one that all machines share."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder).resolve()

    def __str__(self) -> str:
        return str(self.root)

    def prepare(self) -> None:
        """Create the store. Raise an error if it is not writable."""
        prepare_folder(self.root)

    def run_location(self, run: str) -> str:
        """The folder or URL of a run."""
        return str(self.root / run)

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str) -> dict[str, Any]:
        return read_json(self.root / path)

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        write_json(self.root / path, content)

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)


class RemoteStore(Store):
    """A store at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.files, self.path = _file_system(self.url)

    def __str__(self) -> str:
        return self.url

    def prepare(self) -> None:
        try:
            self.files.makedirs(self.path, exist_ok=True)
            probe = f"{self.path}/.probe-{uuid.uuid4().hex}"  # several sweeps may start at the same time
            self.files.pipe_file(probe, b"x")
            self.files.rm_file(probe)
        except Exception as error:  # every kind of storage raises its own errors
            raise LabError(f"{self.url} cannot be written to: {error}") from error

    def run_location(self, run: str) -> str:
        return f"{self.url}/{run}"

    def has(self, path: str) -> bool:
        return bool(self.files.exists(f"{self.path}/{path}"))

    def read(self, path: str) -> dict[str, Any]:
        try:
            content = json.loads(self.files.cat_file(f"{self.path}/{path}"))
        except (ValueError, RecursionError) as error:
            raise LabError(f"{self.url}/{path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise LabError(f"{self.url}/{path} is damaged: it must contain a JSON object")
        return content

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        self.files.makedirs(f"{self.path}/{path}".rpartition("/")[0], exist_ok=True)
        write_atomically(self.files, f"{self.path}/{path}", json.dumps(content, indent=2).encode())

    def remove(self, path: str) -> None:
        if self.has(path):
            self.files.rm_file(f"{self.path}/{path}")


class RunMirror:
    """Keep a copy of a run at a URL: fetched before the run starts, updated after every epoch. It is a tracker."""

    def __init__(self, url: str, folder: Path) -> None:
        self.files, self.path = _file_system(url)
        self.folder = folder

    def fetch(self, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Copy the remote files to the folder."""
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
            self.files.makedirs(f"{self.path}/{name}".rpartition("/")[0], exist_ok=True)
            write_atomically(self.files, f"{self.path}/{name}", local[name].read_bytes())
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
        """The size of every remote file."""
        self.files.invalidate_cache()
        found = self.files.find(self.path, detail=True) if self.files.exists(self.path) else {}
        return {str(path).removeprefix(self.path).lstrip("/"): int(info["size"]) for path, info in found.items()}


def write_atomically(files: Any, path: str, content: bytes) -> None:
    """Write a complete file or none. File systems need a rename for this; object stores write atomically."""
    if not isinstance(files.protocol, str) and "file" in files.protocol:
        folder, _, name = path.rpartition("/")
        files.pipe_file(f"{folder}/.{name}.part", content)
        Path(f"{folder}/.{name}.part").replace(path)
    else:
        files.pipe_file(path, content)


def is_url(location: str) -> bool:
    return "://" in location


def open_store(location: str) -> Store:
    """The store at a folder or a URL."""
    return RemoteStore(location) if is_url(location) else Store(location)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise LabError(f"{url} needs the package fsspec: pip install 'flipout[ray]'") from error
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise LabError(f"{url} cannot be opened: {error}") from error
    return files, path.rstrip("/")

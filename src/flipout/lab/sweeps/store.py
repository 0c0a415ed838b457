"""Where the runs of a sweep are kept: a folder, or anything that fsspec has a name for (s3://, gs://, file://)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..files import read_json, remove_leftovers, write_json
from ..runs.run_folder import CHECKPOINTS, RESULT, prepare_folder


class Store:
    """A folder of this machine, or one that all machines share."""

    def __init__(self, where: str) -> None:
        self.root = Path(where).resolve()

    def __str__(self) -> str:
        return str(self.root)

    def prepare(self) -> None:
        """Finds out whether it can be written to."""
        prepare_folder(self.root)

    def where(self, run: str) -> str:
        """Where a run is kept."""
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


class Remote(Store):
    """Somewhere else."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.files, self.path = _file_system(self.url)

    def __str__(self) -> str:
        return self.url

    def prepare(self) -> None:
        try:
            self.files.makedirs(self.path, exist_ok=True)
            self.files.pipe_file(f"{self.path}/.probe", b"x")
            self.files.rm_file(f"{self.path}/.probe")
        except Exception as error:  # every kind of storage has its own
            raise LabError(f"{self.url} cannot be written to: {error}") from error

    def where(self, run: str) -> str:
        return f"{self.url}/{run}"

    def has(self, path: str) -> bool:
        return bool(self.files.exists(f"{self.path}/{path}"))

    def read(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.files.cat_file(f"{self.path}/{path}")))

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        self.files.makedirs(f"{self.path}/{path}".rpartition("/")[0], exist_ok=True)
        put(self.files, f"{self.path}/{path}", json.dumps(content, indent=2).encode())

    def remove(self, path: str) -> None:
        if self.has(path):
            self.files.rm_file(f"{self.path}/{path}")


class Mirror:
    """Keeps a copy of a run elsewhere: fetched before it starts, brought up to date after every epoch (a tracker)."""

    def __init__(self, url: str, folder: Path) -> None:
        self.files, self.path = _file_system(url)
        self.folder = folder

    def fetch(self, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Brings what is there into the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in filter(wanted, self._there()):
            here = self.folder / path
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_bytes(self.files.cat_file(f"{self.path}/{path}"))

    def push(self) -> None:
        """Copies what is new, the result last, for it says that all is there; then removes old checkpoints there."""
        remove_leftovers(self.folder)
        here = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        there = self._there()
        if RESULT in there and RESULT not in here:
            return  # another attempt was faster; its results stay as they are
        for name in sorted(here, key=lambda name: (name == RESULT, not name.startswith(CHECKPOINTS), name)):
            if name.endswith(".lock") or (
                name.startswith(CHECKPOINTS) and there.get(name) == here[name].stat().st_size
            ):
                continue
            self.files.makedirs(f"{self.path}/{name}".rpartition("/")[0], exist_ok=True)
            put(self.files, f"{self.path}/{name}", here[name].read_bytes())
        for name in there:
            if name.startswith(CHECKPOINTS) and name not in here:
                self.files.rm_file(f"{self.path}/{name}")

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        self.push()

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.push()

    def finish(self, result: Mapping[str, Any]) -> None:
        self.push()

    def _there(self) -> dict[str, int]:
        """The files that are there, and their sizes."""
        self.files.invalidate_cache()
        found = self.files.find(self.path, detail=True) if self.files.exists(self.path) else {}
        return {str(path).removeprefix(self.path).lstrip("/"): int(info["size"]) for path, info in found.items()}


def put(files: Any, path: str, content: bytes) -> None:
    """Writes a file whole or not at all: by renaming on file systems; object stores do so by themselves."""
    if not isinstance(files.protocol, str) and "file" in files.protocol:
        folder, _, name = path.rpartition("/")
        files.pipe_file(f"{folder}/.{name}.part", content)
        Path(f"{folder}/.{name}.part").replace(path)
    else:
        files.pipe_file(path, content)


def is_url(where: str) -> bool:
    return "://" in where


def open_store(where: str) -> Store:
    """The store that a user named: a folder, or a URL."""
    return Remote(where) if is_url(where) else Store(where)


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

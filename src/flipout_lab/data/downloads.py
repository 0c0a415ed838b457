"""Download the files of data sets, resume broken downloads, verify checksums, and unpack archives."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock
import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..errors import LabError


def data_home() -> Path:
    """The folder of all data sets: `$FLIPOUT_DATA`, or `flipout` in the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("FLIPOUT_DATA") or f"{caches}/flipout").expanduser()


@dataclass(frozen=True)
class Source:
    """A file of a data set: its name, its published MD5 checksum, and the addresses to try in order.

    With `of_content` the checksum is that of the content of a gzip file, which Linux distributions compress anew.
    """

    name: str
    md5: str
    urls: Sequence[str]
    of_content: bool = False


def fetch(folder: Path, source: Source) -> Path:
    """Return the path of a file in `folder`, with its checksum verified. Download the file if it does not exist.

    One process downloads; others wait for it.
    """
    path = folder / source.name
    if not path.exists():
        with _locked(folder, source.name):
            return _downloaded(folder, source)
    check(path, source.md5, of_content=source.of_content)
    return path


def unpacked(home: Path, name: str, source: Source) -> Path:
    """A folder of an archive, which is fetched and unpacked if the folder does not exist."""
    folder = home / name
    if not folder.is_dir():
        archive = fetch(home, source)
        with _locked(home, name):
            if not folder.is_dir():  # another process may have unpacked it
                # A folder that exists is complete: it is renamed when all of its files are there.
                with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=home) as scratch:
                    with tarfile.open(archive) as files:
                        files.extractall(scratch, filter="data")
                    (Path(scratch) / name).rename(folder)
    return folder


def _locked(folder: Path, name: str) -> filelock.BaseFileLock:
    """The lock of a file or folder that is made in `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"{folder} cannot be created ({error}); set FLIPOUT_DATA to a folder you can write to"
        ) from error
    return filelock.FileLock(folder / f"{name}.lock")


def _downloaded(folder: Path, source: Source) -> Path:
    path, part, failures = folder / source.name, folder / f"{source.name}.part", []
    if path.exists():  # another process has downloaded it
        return path
    for url in source.urls:
        try:
            _download(url, part)
            check(part, source.md5, of_content=source.of_content)
            return part.replace(path)
        except (requests.RequestException, OSError) as error:
            failures.append(f"{url}: {error}")
        except LabError as error:  # a wrong checksum
            part.unlink()
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise LabError(
        f"{path} does not exist and could not be downloaded:\n  {reasons}\nDownload {source.urls[0]} on a machine "
        f"with a network and put it at exactly that path, or set FLIPOUT_DATA to a folder that has the file"
    )


def check(path: Path, md5: str, *, of_content: bool = False) -> None:
    """Raise an error if a file, or the content of a gzip file, does not have the published checksum."""
    try:
        with gzip.open(path) if of_content else path.open("rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found = str(error)
    if found != md5:
        raise LabError(
            f"{path} is damaged or not the published file: its MD5 is {found}, not {md5}. Delete it to download it anew"
        )


def _download(url: str, part: Path) -> None:
    """Download a file to `part`. What is there of it is kept, and only the rest is requested."""
    have = part.stat().st_size if part.exists() else 0
    with requests.get(url, headers={"Range": f"bytes={have}-"} if have else {}, stream=True, timeout=30) as response:
        if response.status_code == 416:  # the file is complete already
            return
        response.raise_for_status()
        if response.status_code != 206:
            have = 0  # the server does not resume and sends the whole file
        total = int(response.headers.get("Content-Length", 0)) + have
        columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with part.open("ab" if have else "wb") as file, Progress(*columns) as progress:
            task = progress.add_task(url.rsplit("/", 1)[-1], total=total or None, completed=have)
            for block in response.iter_content(1 << 16):
                file.write(block)
                progress.update(task, advance=len(block))
        if total and part.stat().st_size < total:
            raise OSError(f"the connection was closed after {part.stat().st_size:,} of {total:,} bytes; try again")

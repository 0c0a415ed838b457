"""Download the files of data sets, resume broken downloads, and verify checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..errors import LabError


def data_home() -> Path:
    """The folder of all data sets: `$FLIPOUT_DATA`, or the user's cache folder."""
    return Path(os.environ.get("FLIPOUT_DATA") or pooch.os_cache("flipout")).expanduser()


@dataclass(frozen=True)
class Source:
    """A file of a data set: its name, its published MD5 checksum, and the addresses to try in order.

    `content_md5` is the checksum of the content of a gzip file. With it, a file that was compressed in another way, for
    example for a Linux distribution, is accepted too.
    """

    name: str
    md5: str
    urls: Sequence[str]
    content_md5: str = ""


def fetch(folder: Path, source: Source) -> Path:
    """Return the path of a file in `folder`, with its checksum verified. Download the file if it does not exist."""
    path = folder / source.name
    if path.exists():
        check(path, source.md5, source.content_md5)
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"the folder {folder} cannot be created ({error}); set FLIPOUT_DATA to a folder you can write to"
        ) from error
    part = folder / f"{source.name}.part"
    failures = []
    for url in source.urls:
        try:
            downloader = ResumingDownloader(part)
            pooch.retrieve(url, f"md5:{source.md5}", fname=source.name, path=folder, downloader=downloader)
            return path
        except (requests.RequestException, OSError) as error:
            failures.append(f"{url}: {error}")
        except ValueError as error:  # pooch raises this for a wrong checksum
            part.unlink(missing_ok=True)
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise LabError(
        f"{path} does not exist and could not be downloaded:\n  {reasons}\nDownload {source.urls[0]} on a machine "
        f"with a network and put it at exactly that path (MD5 {source.md5}), or set FLIPOUT_DATA to a folder that "
        "has the file"
    )


def check(path: Path, md5: str, content_md5: str = "") -> None:
    """Raise an error if neither a file nor its decompressed content has the published checksum."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5 and not (content_md5 and _content_digest(path) == content_md5):
        raise LabError(
            f"{path} is damaged or not the published file: its MD5 is {found}, not {md5}. Delete it to "
            "download it again"
        )


def _content_digest(path: Path) -> str:
    """Return the MD5 of the content of a gzip file, or nothing if it cannot be decompressed."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return ""
    return digest.hexdigest()


class ResumingDownloader:
    """A downloader for pooch that keeps an incomplete download in `part` and requests only the rest."""

    def __init__(self, part: Path, chunk: int = 1 << 16) -> None:
        self.part, self.chunk = part, chunk

    def __call__(self, url: str, output_file: Any, pooch_object: Any) -> None:
        target, part = Path(output_file), self.part
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code == 416:  # the file is complete already
                part.replace(target)
                return
            response.raise_for_status()
            if response.status_code != 206:
                have = 0  # the server does not resume and sends the whole file
            total = int(response.headers.get("Content-Length", 0)) + have
            with part.open("ab" if have else "wb") as file, _bar(url, have, total) as advance:
                for block in response.iter_content(self.chunk):
                    file.write(block)
                    advance(len(block))
            if total and part.stat().st_size < total:
                raise OSError(f"the connection was closed after {part.stat().st_size:,} of {total:,} bytes; try again")
        part.replace(target)


@contextmanager
def _bar(url: str, have: int, total: int) -> Iterator[Any]:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(url.rsplit("/", 1)[-1], total=total or None, completed=have)
        yield lambda n: progress.update(task, advance=n)

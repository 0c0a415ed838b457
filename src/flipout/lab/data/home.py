"""Where data sets live, and how they come there: downloaded from their homes, resumed, and checked."""

from __future__ import annotations

import hashlib
import os
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
    """`$FLIPOUT_DATA`, or the user's cache folder."""
    return Path(os.environ.get("FLIPOUT_DATA") or pooch.os_cache("flipout")).expanduser()


@dataclass(frozen=True)
class Source:
    """A file of a data set: its name, its MD5 checksum as published, and the addresses to try in turn."""

    name: str
    md5: str
    urls: Sequence[str]


def fetch(folder: Path, source: Source) -> Path:
    """The file in `folder`, checked; downloaded first if it is not there."""
    path = folder / source.name
    if path.exists():
        check(path, source.md5)
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"the folder {folder} cannot be made ({error}); set FLIPOUT_DATA to one that can") from error
    part = folder / f"{source.name}.part"
    failures = []
    for url in source.urls:
        try:
            pooch.retrieve(url, f"md5:{source.md5}", fname=source.name, path=folder, downloader=Resuming(part))
            return path
        except (requests.RequestException, OSError) as error:
            failures.append(f"{url}: {error}")
        except ValueError as error:  # pooch's word for a wrong checksum
            part.unlink(missing_ok=True)
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise LabError(
        f"{path} is not there and could not be downloaded:\n  {reasons}\nFetch {source.urls[0]} where there is a "
        f"network and put it at exactly that path (MD5 {source.md5}), or set FLIPOUT_DATA to a folder that has it"
    )


def check(path: Path, md5: str) -> None:
    """Refuses a file that is not, byte for byte, the one that was published."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        raise LabError(
            f"{path} is damaged or not the published file: its MD5 is {found}, not {md5}. Delete it, and it is "
            "downloaded again"
        )


class Resuming:
    """A downloader for pooch that keeps what has come in `part` and asks for the rest."""

    def __init__(self, part: Path, chunk: int = 1 << 16) -> None:
        self.part, self.chunk = part, chunk

    def __call__(self, url: str, output_file: Any, pooch_object: Any) -> None:
        target, part = Path(output_file), self.part
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code == 416:  # nothing left to ask for
                part.replace(target)
                return
            response.raise_for_status()
            if response.status_code != 206:
                have = 0  # the server sends all of it again
            total = int(response.headers.get("Content-Length", 0)) + have
            with part.open("ab" if have else "wb") as file, _bar(url, have, total) as advance:
                for block in response.iter_content(self.chunk):
                    file.write(block)
                    advance(len(block))
            if total and part.stat().st_size < total:
                raise OSError(f"the connection broke off after {part.stat().st_size:,} of {total:,} bytes; try again")
        part.replace(target)


@contextmanager
def _bar(url: str, have: int, total: int) -> Iterator[Any]:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(url.rsplit("/", 1)[-1], total=total or None, completed=have)
        yield lambda n: progress.update(task, advance=n)

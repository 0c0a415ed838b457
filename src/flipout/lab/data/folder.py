"""Photographs in folders, one for each class: Imagenette, and a user's own."""

from __future__ import annotations

import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from ..errors import LabError
from .home import Source, fetch

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
ARCHIVES = {
    "imagenette2": "fe2fc210e6bb7c5664d602c3cd71e612",
    "imagenette2-320": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2-160": "e793b78cc4c9e9a4ccc0c1155377a412",
}
COMPLETE = (9_469, 3_925)


def imagenette(home: Path, name: str, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Imagenette in one of its sizes."""
    folder = home / name
    if not folder.is_dir():
        url = f"https://s3.amazonaws.com/fast-ai-imageclas/{name}.tgz"
        with tarfile.open(fetch(home, Source(f"{name}.tgz", ARCHIVES[name], [url]))) as archive:
            archive.extractall(home, filter="data")
    found = tuple(len(_files(folder / part)) for part in ("train", "val"))
    if found != COMPLETE:
        raise LabError(
            f"{folder} holds {found[0]:,} training and {found[1]:,} validation images, not {COMPLETE[0]:,} and "
            f"{COMPLETE[1]:,}: delete it, and it is unpacked again; a part of it on purpose is --data {folder}"
        )
    return read(folder, side)


def read(folder: Path, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images, labels, test images, labels: the shorter side scaled to `side`, and the middle taken."""
    test = next((folder / name for name in ("test", "val", "valid") if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        raise LabError(f"{folder} needs the folders train and test (or val), each with a folder for every class")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(classes) < 2:
        raise LabError(f"{folder / 'train'} needs a folder for each of at least two classes")
    if extra := sorted({path.name for path in test.iterdir() if path.is_dir()} - set(classes)):
        raise LabError(f"{test} has classes that {folder / 'train'} has not: {', '.join(extra)}")
    return *_read_part(folder / "train", classes, side), *_read_part(test, classes, side)


def _read_part(part: Path, classes: list[str], side: int) -> tuple[Tensor, Tensor]:
    files = [path for path in _files(part) if path.parent.name in classes]
    if not files:
        raise LabError(f"there are no images below {part}")
    labels = torch.tensor([classes.index(path.parent.name) for path in files])
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:  # decoding leaves Python's lock
        decoded = pool.map(lambda path: _decode(path, side), files)
        for i, image in enumerate(track(decoded, f"reading {part.name}", len(files), transient=True)):
            images[i] = image
    return images, labels


def _files(part: Path) -> list[Path]:
    return sorted(path for path in part.glob("*/*") if path.suffix.lower() in ENDINGS)


def _decode(path: Path, side: int) -> Tensor:
    try:
        with Image.open(path) as file:
            scale = side / min(file.size)
            width, height = (max(side, round(length * scale)) for length in file.size)
            image = file.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            left, top = (width - side) // 2, (height - side) // 2
            pixels = np.asarray(image.crop((left, top, left + side, top + side)))
    except (OSError, SyntaxError) as error:
        raise LabError(f"{path} cannot be read as an image ({error}); mend it or take it away") from error
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)

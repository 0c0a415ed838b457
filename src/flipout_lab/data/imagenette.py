"""Imagenette: ten classes of ImageNet, published in three sizes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from ..errors import LabError
from .data_types import Arrays
from .downloads import Source, fetch
from .image_folder import image_files, read_image_folder

ARCHIVES = {
    "imagenette2": "fe2fc210e6bb7c5664d602c3cd71e612",
    "imagenette2-320": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2-160": "e793b78cc4c9e9a4ccc0c1155377a412",
}
COMPLETE = (9_469, 3_925)


def imagenette_reader(name: str, default_side: int) -> Callable[[Path, int | None], Arrays]:
    """A function that reads one of the three sizes, scaled to `default_side` unless another size is given."""
    return lambda home, side: read_imagenette(home, name, side or default_side)


def read_imagenette(home: Path, name: str, side: int) -> Arrays:
    """Training images, labels, test images, labels of one of the three sizes."""
    folder = home / name
    if not folder.is_dir():
        url = f"https://s3.amazonaws.com/fast-ai-imageclas/{name}.tgz"
        with tarfile.open(fetch(home, Source(f"{name}.tgz", ARCHIVES[name], [url]))) as archive:
            archive.extractall(home, filter="data")
    found = tuple(len(image_files(folder / part)) for part in ("train", "val"))
    if found != COMPLETE:
        raise LabError(
            f"{folder} has {found[0]:,} training and {found[1]:,} validation images; Imagenette has {COMPLETE[0]:,} "
            f"and {COMPLETE[1]:,}. Delete the folder to unpack it again, or use --data {folder} to train on a part "
            "of it on purpose"
        )
    return read_image_folder(folder, side)

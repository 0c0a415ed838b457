"""Read photographs from folders, one folder per class."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from ..errors import LabError
from .data_types import Arrays

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def read_image_folder(folder: Path, side: int) -> Arrays:
    """Training images, labels, test images, labels: the shorter side scaled to `side`, then cropped to the centre."""
    test = next((folder / name for name in ("test", "val", "valid") if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        raise LabError(f"{folder} needs the folders train and test (or val), each with one folder per class")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(classes) < 2:
        raise LabError(f"{folder / 'train'} needs at least two classes, with one folder per class")
    if extra := sorted({path.name for path in test.iterdir() if path.is_dir()} - set(classes)):
        raise LabError(f"{test} has classes that are missing in {folder / 'train'}: {', '.join(extra)}")
    return *_read_split(folder / "train", classes, side), *_read_split(test, classes, side)


def image_files(split: Path) -> list[Path]:
    """The image files below a folder of class folders, in a fixed order."""
    return sorted(path for path in split.glob("*/*") if path.suffix.lower() in SUFFIXES)


def _read_split(split: Path, classes: list[str], side: int) -> tuple[Tensor, Tensor]:
    files = [path for path in image_files(split) if path.parent.name in classes]
    if not files:
        raise LabError(f"no images found below {split}")
    labels = torch.tensor([classes.index(path.parent.name) for path in files])
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:  # decoding releases Python's global lock
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # the warning does not name the file
        decoded = pool.map(lambda path: _decode(path, side), files)
        for i, image in enumerate(track(decoded, f"reading {split.name}", len(files), transient=True)):
            images[i] = image
    return images, labels


def _decode(path: Path, side: int) -> Tensor:
    try:
        with Image.open(path) as file:
            scale = side / min(file.size)
            width, height = (max(side, round(length * scale)) for length in file.size)
            image = file.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            left, top = (width - side) // 2, (height - side) // 2
            pixels = np.asarray(image.crop((left, top, left + side, top + side)))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise LabError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels ({error}); scale it down or remove it"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise LabError(f"{path} cannot be read as an image ({error}); repair it or remove it") from error
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)

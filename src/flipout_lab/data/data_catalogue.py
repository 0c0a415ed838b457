"""The catalogue of data sets. To add one, write its reader in `data_readers.py` and add its record here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from .data_readers import (
    Arrays,
    fetch_cifar10,
    fetch_idx,
    fetch_imagenette,
    read_cifar10,
    read_digits,
    read_idx,
    read_imagenette,
)


@dataclass(frozen=True)
class Data:
    """Images and labels in memory. Images are bytes from 0 to 255, or floats, which are used without normalization."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    flip: bool = False
    crop: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


@dataclass(frozen=True)
class DataInfo:
    """The catalogue record of a data set: everything the lab knows about it before it is read."""

    title: str  # in reports
    about: str  # in `flipout data`
    read: Callable[[Path, int | None], Arrays]  # called with the data folder and --image-size
    train: int  # number of training images
    shape: tuple[int, int, int]
    classes: int = 10
    validation: int | None = None  # number of training images that --validate holds out; None: a tenth
    flip: bool = False  # augmentation: mirror images
    crop: int = 0  # augmentation: shift images by up to this many pixels
    resizable: bool = False  # whether --image-size applies
    fetch: Callable[[Path], object] = lambda home: None  # called with the data folder: downloads what is missing


CLOTHES, MNIST = "70,000 images of clothes of 28 x 28", "70,000 handwritten digits of 28 x 28"
DIGITS = "1,797 handwritten digits of 8 x 8, included in scikit-learn"
CIFAR10 = "60,000 colour images of 32 x 32 in ten classes"
DATA: dict[str, DataInfo] = {
    "digits": DataInfo("digits", DIGITS, read_digits, 1437, (1, 8, 8)),
    **{
        name: DataInfo(
            title, about, partial(read_idx, name=name), 60_000, (1, 28, 28), fetch=partial(fetch_idx, name=name)
        )
        for name, title, about in (("mnist", "MNIST", MNIST), ("fashion-mnist", "Fashion-MNIST", CLOTHES))
    },
    "cifar10": DataInfo(
        "CIFAR-10",
        CIFAR10,
        read_cifar10,
        train=50_000,
        shape=(3, 32, 32),
        validation=10_000,
        flip=True,
        crop=4,
        fetch=fetch_cifar10,
    ),
}
for _size, _side in (("", 224), ("-320", 224), ("-160", 128)):
    DATA[f"imagenette{_size}"] = DataInfo(
        f"Imagenette{_size}",
        f"13,394 photographs in ten classes{f', {_size[1:]} pixels on the shorter side' if _size else ''}",
        partial(read_imagenette, name=f"imagenette2{_size}", default_side=_side),
        train=9_469,
        shape=(3, _side, _side),
        validation=2_000,
        flip=True,
        crop=_side // 8,
        resizable=True,
        fetch=partial(fetch_imagenette, name=f"imagenette2{_size}"),
    )


def data_title(name: str) -> str:
    """The title of a data set in reports; the name itself for a folder or a function of the user."""
    return DATA[name].title if name in DATA else name

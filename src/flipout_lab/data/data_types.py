"""A data set in memory, and its record in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, training labels, test images, test labels."""


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

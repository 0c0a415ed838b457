"""The data sets of the lab: what there is, and `load(name)`, which gives tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError, unknown
from ..plugins import find_function
from . import cifar, folder, idx
from .home import data_home


@dataclass(frozen=True)
class Data:
    """Images and labels in memory: bytes from 0 to 255, or floats that are taken as they are."""

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
    """What is known of a data set without reading it, and how it is read."""

    read: Callable[[Path, int | None], tuple[Tensor, Tensor, Tensor, Tensor]]
    train: int
    shape: tuple[int, int, int]
    validation: int | None
    about: str
    classes: int = 10
    flip: bool = False
    crop: int = 0


def _digits(home: Path, size: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's own copy; the first 1,437 of a fixed order to train on, the other 360 to test on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] * (255 / 16)
    y = torch.tensor(labels)[order]
    return x[:1437].byte(), y[:1437], x[1437:].byte(), y[1437:]


DATA: dict[str, DataInfo] = {
    "digits": DataInfo(_digits, 1437, (1, 8, 8), None, "1,797 handwritten digits of 8 x 8, embedded in scikit-learn"),
    "mnist": DataInfo(
        lambda home, _: idx.read(home, idx.MNIST), 60_000, (1, 28, 28), None, "70,000 handwritten digits of 28 x 28"
    ),
    "fashion-mnist": DataInfo(
        lambda home, _: idx.read(home, idx.FASHION_MNIST), 60_000, (1, 28, 28), None, "70,000 clothes of 28 x 28"
    ),
    "cifar10": DataInfo(
        lambda home, _: cifar.read(home),
        50_000,
        (3, 32, 32),
        10_000,
        "60,000 colour images of 32 x 32 in ten classes",
        flip=True,
        crop=4,
    ),
}
for _variant, _size, _side in (("", "", 224), ("-320", "-320", 224), ("-160", "-160", 128)):
    DATA[f"imagenette{_variant}"] = DataInfo(
        lambda home, side, archive=f"imagenette2{_size}", default=_side: folder.imagenette(  # type: ignore[misc]
            home, archive, side or default
        ),
        9_469,
        (3, _side, _side),
        2_000,
        f"13,394 photographs in ten classes{f', {_size[1:]} pixels on the shorter side' if _size else ''}",
        flip=True,
        crop=_side // 8,
    )


def load(name: str, image_size: int | None = None) -> Data:
    """Reads a data set into memory, downloading it first where it is neither here nor embedded.

    Args:
        name: one of `DATA`, a folder with `train/CLASS/*.jpg` and `test` or `val` beside it, or a function of yours as
            `module:function` that returns training images, labels, test images, labels.
        image_size: the side that photographs are scaled to.
    """
    if name in DATA:
        info = DATA[name]
        if image_size is not None and not name.startswith("imagenette"):
            raise LabError(f"--image-size is for photographs; the images of {name} are of one size")
        return Data(name, *info.read(data_home(), image_size), info.classes, info.flip, info.crop)
    if Path(name).is_dir():
        side = image_size or 224
        images = folder.read(Path(name), side)
        return Data(name, *images, classes=_classes(name, images[1], images[3]), flip=True, crop=side // 8)
    if ":" in name:
        return _foreign(name)
    raise unknown("data set", name, [*DATA, "a folder", "module:function"])


def _foreign(name: str) -> Data:
    result: Any = find_function(name)()
    if isinstance(result, Data):
        return result
    if not isinstance(result, tuple) or len(result) != 4 or not all(isinstance(part, Tensor) for part in result):
        raise LabError(f"{name} must return four tensors: training images, labels, test images, labels")
    images, labels, test_images, test_labels = result
    for part, shape in (("training", images.shape), ("test", test_images.shape)):
        if len(shape) != 4:
            raise LabError(
                f"the {part} images of {name} have shape {tuple(shape)}; give (number, channels, height, width)"
            )
    if len(images) != len(labels) or len(test_images) != len(test_labels):
        raise LabError(f"{name} returns {len(images)} images with {len(labels)} labels")
    return Data(name, images, labels.long(), test_images, test_labels.long(), _classes(name, labels, test_labels))


def _classes(name: str, *labels: Tensor) -> int:
    least, most = (int(f(torch.cat([f(part).view(1) for part in labels]))) for f in (torch.min, torch.max))
    if least < 0:
        raise LabError(f"the labels of {name} start at {least}; number the classes from 0")
    return most + 1


__all__ = ["DATA", "Data", "DataInfo", "data_home", "load"]

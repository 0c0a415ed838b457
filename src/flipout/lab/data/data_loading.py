"""Load a data set by name: from the catalogue, from an image folder, or from a function of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError, unknown
from ..plugins import find_function
from .data_catalogue import DATA
from .data_types import Data
from .downloads import data_home
from .image_folder import read_image_folder


def load(name: str, image_size: int | None = None) -> Data:
    """Read a data set into memory. Download it first if it is not on this machine.

    Args:
        name: a key of `DATA`, a folder with `train/CLASS/*.jpg` and `test` or `val` next to `train`, or your own
            function as `module:function`, which returns training images, labels, test images, labels.
        image_size: the side in pixels to which photographs are scaled.
    """
    if name in DATA:
        info = DATA[name]
        if image_size is not None and not info.resizable:
            raise LabError(f"--image-size applies to photographs only; the images of {name} have a fixed size")
        return Data(name, *info.read(data_home(), image_size), info.classes, info.flip, info.crop)
    if Path(name).is_dir():
        side = image_size or 224
        arrays = read_image_folder(Path(name), side)
        classes = _count_classes(name, arrays[1], arrays[3])
        return Data(name, *arrays, classes=classes, flip=True, crop=side // 8)
    if ":" in name:
        return _load_from_function(name)
    raise unknown("data set", name, [*DATA, "a folder", "module:function"])


def _load_from_function(name: str) -> Data:
    result: Any = find_function(name)()
    if isinstance(result, Data):
        return result
    if not isinstance(result, tuple) or len(result) != 4 or not all(isinstance(part, Tensor) for part in result):
        raise LabError(f"{name} must return four tensors: training images, labels, test images, labels")
    images, labels, test_images, test_labels = result
    for part, shape in (("training", images.shape), ("test", test_images.shape)):
        if len(shape) != 4:
            raise LabError(
                f"the {part} images of {name} have shape {tuple(shape)}; expected (number, channels, height, width)"
            )
    for part, found, labelled in (("training", images, labels), ("test", test_images, test_labels)):
        if len(found) != len(labelled):
            raise LabError(f"{name} returns {len(found)} {part} images but {len(labelled)} {part} labels")
    classes = _count_classes(name, labels, test_labels)
    return Data(name, images, labels.long(), test_images, test_labels.long(), classes)


def _count_classes(name: str, *labels: Tensor) -> int:
    lowest, highest = (int(f(torch.cat([f(part).view(1) for part in labels]))) for f in (torch.min, torch.max))
    if lowest < 0:
        raise LabError(f"the smallest label of {name} is {lowest}; number the classes from 0")
    return highest + 1

"""Load a data set by name: from the catalogue, from an image folder, or from a function of the user."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError, unknown
from ..files import is_folder
from ..plugins import find_function
from .data_catalogue import DATA, Data
from .data_readers import Arrays, read_image_folder
from .downloads import data_home


def load(name: str, image_size: int | None = None) -> Data:
    """Read a data set into memory. Download it first if it is not on this machine.

    Args:
        name: a key of `DATA`, a folder with `train/CLASS/*.jpg` and `test` or `val` next to `train` (here or below the
            data folder), or your own function as `module:function`, which returns training images, labels, test
            images, labels.
        image_size: the side in pixels to which photographs are scaled.
    """
    if name in DATA:
        info = DATA[name]
        if image_size is not None:
            check_image_size(name)
        return Data(name, *info.read(data_home(), image_size), info.classes, info.flip, info.crop)
    if (folder := find_image_folder(name)) is not None:
        side = image_size or 224
        arrays = read_image_folder(folder, side)
        classes = count_classes(name, arrays[1], arrays[3])
        return Data(name, *arrays, classes=classes, flip=True, crop=side // 8)
    if ":" in name:
        return _load_from_function(name)
    raise unknown("data set", name, [*DATA, "a folder", "module:function"])


def find_image_folder(name: str) -> Path | None:
    """The folder of this name, or the one below the data folder; None if there is neither."""
    return next((folder for folder in (Path(name), data_home() / name) if is_folder(folder)), None)


def check_image_size(name: str) -> None:
    """Raise an error if the images of a data set of the catalogue cannot be scaled."""
    if not DATA[name].resizable:
        raise LabError(f"--image-size applies to photographs only; the images of {name} have a fixed size")


def _load_from_function(name: str) -> Data:
    function = find_function(name)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise LabError(f"{name} is called without arguments ({error}); give every argument a default value") from error
    except ValueError:
        pass  # a function without a signature, such as one written in C
    returned: Any = function()
    if not isinstance(returned, Data):
        arrays = check_arrays(name, returned)
        return Data(name, *arrays, classes=count_classes(name, arrays[1], arrays[3]))
    arrays = check_arrays(
        name, (returned.train_images, returned.train_labels, returned.test_images, returned.test_labels)
    )
    classes = count_classes(name, arrays[1], arrays[3])
    if classes > returned.classes:
        raise LabError(f"{name} returns classes={returned.classes}, but its largest label is {classes - 1}")
    return Data(returned.name, *arrays, returned.classes, returned.flip, returned.crop)


RETURNS = "four tensors: training images, labels, test images, labels"
PARTS = ("training", "test")
MOST_CLASSES = 100_000
"""More classes than this are an error, unless there are as many training images."""

OTHER_SCALE = 16.0
"""A ratio of the largest pixels of training and test images that needs a warning."""


def check_arrays(name: str, returned: object) -> Arrays:
    """Return the arrays of a function of the user, with labels as int64. Anything that would train wrongly is an error.

    The test set may be empty: `--validate` does not use it.
    """
    if not isinstance(returned, (tuple, list)) or len(returned) != 4:
        found = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
        raise LabError(f"{name} must return {RETURNS}; it returns {found}")
    for value in returned:
        if not isinstance(value, Tensor):
            advice = "convert it with torch.as_tensor" if hasattr(value, "__array__") else "return tensors"
            raise LabError(f"{name} must return {RETURNS}; one of them is of type {type(value).__name__}: {advice}")
    images, labels, test_images, test_labels = (value.detach() for value in returned)
    _check_images(name, images, test_images)
    labels = _check_labels(name, "training", labels, len(images))
    test_labels = _check_labels(name, "test", test_labels, len(test_images))
    if not len(images):
        raise LabError(f"{name} returns no training images; return {RETURNS}")
    if bool((labels == labels[0]).all()):
        raise LabError(f"all training labels of {name} are {int(labels[0])}; return at least two classes")
    return images, labels, test_images, test_labels


def count_classes(name: str, labels: Tensor, test_labels: Tensor) -> int:
    """Return the number of classes: one more than the largest label. Classes may be missing in between."""
    both = torch.cat([labels, test_labels])
    lowest, highest = int(both.min()), int(both.max())
    if lowest < 0:
        raise LabError(f"the smallest label of {name} is {lowest}; number the classes from 0")
    if highest >= max(MOST_CLASSES, len(labels)):
        raise LabError(
            f"the largest label of {name} is {highest}, and the network would have as many outputs; number the classes "
            "from 0, for example with torch.unique(labels, return_inverse=True)[1]"
        )
    return highest + 1


def _check_images(name: str, images: Tensor, test_images: Tensor) -> None:
    for part, found in zip(PARTS, (images, test_images), strict=True):
        where = f"the {part} images of {name}"
        if found.dim() != 4 or 0 in found.shape[1:]:
            raise LabError(f"{where} have shape {tuple(found.shape)}; expected (number, channels, height, width)")
        if found.dtype != torch.uint8 and not found.is_floating_point():
            raise LabError(f"{where} are {_dtype(found)}; return bytes from 0 to 255 (uint8) or floats")
    if images.dtype != test_images.dtype:
        raise LabError(
            f"the training images of {name} are {_dtype(images)}, but the test images are {_dtype(test_images)}: bytes "
            "are normalized and floats are not; return both with the same dtype and the same scale"
        )
    if images.shape[1:] != test_images.shape[1:]:
        sizes = [" x ".join(map(str, found.shape[1:])) for found in (images, test_images)]
        raise LabError(f"the training images of {name} are {sizes[0]}, but the test images are {sizes[1]}")
    if images.is_floating_point():
        largest = [
            _largest(f"the {part} images of {name}", found)
            for part, found in zip(PARTS, (images, test_images), strict=True)
        ]
        if min(largest) * OTHER_SCALE < max(largest) and len(images) and len(test_images):
            warnings.warn(
                f"the largest absolute value is {largest[0]:.4g} in the training images of {name} and {largest[1]:.4g} "
                "in the test images: floats are used as they are; are both scaled in the same way?",
                stacklevel=2,
            )


def _largest(where: str, images: Tensor) -> float:
    """Return the largest absolute value of images that are floats; NaN and infinity are errors."""
    largest, done = 0.0, 0
    for part in _pieces(images):
        if not (finite := part.isfinite().flatten(1).all(1)).all():
            number = done + int((~finite).nonzero()[0])
            raise LabError(f"{where} contain NaN or infinity, first in image {number}; return finite numbers")
        largest, done = max(largest, float(part.abs().max())), done + len(part)
    return largest


def _pieces(images: Tensor) -> Iterator[Tensor]:
    """The images as floats of the type that the network sees, a part at a time to save memory."""
    for start in range(0, len(images), 4096):
        yield images[start : start + 4096].float()


def _check_labels(name: str, part: str, labels: Tensor, images: int) -> Tensor:
    where, shape = f"the {part} labels of {name}", tuple(labels.shape)
    if labels.dim() == 2 and shape[1] == 1:
        raise LabError(f"{where} have shape {shape}; return one class number per image: labels.flatten()")
    if labels.dim() == 2 and shape[0] == images:
        raise LabError(
            f"{where} have shape {shape}, like one-hot labels; return one class number per image: labels.argmax(1)"
        )
    if labels.dim() != 1:
        raise LabError(f"{where} have shape {shape}; return one class number per image")
    if shape[0] != images:
        raise LabError(f"{name} returns {images} {part} images but {shape[0]} {part} labels")
    if labels.is_floating_point() or labels.is_complex():
        whole = not labels.is_complex() and bool((labels == labels.round()).all())
        advice = "labels.long()" if whole else "class numbers from 0 (regression is not supported)"
        raise LabError(f"{where} are {_dtype(labels)}; return integers: {advice}")
    return labels.long()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""Load a data set by name: from the catalogue, from an image folder, or from a function of the user."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError, find, unknown
from ..files import is_folder
from .data_catalogue import DATA, Data
from .data_readers import Arrays, read_image_folder
from .downloads import data_home

RETURNS = "four tensors: training images, labels, test images, labels"
MOST_CLASSES = 100_000
"""More classes than this are an error, unless there are as many training images."""

OTHER_SCALE = 16.0
"""A ratio of the largest pixels of training and test images that needs a warning."""


def load(name: str, image_size: int | None = None) -> Data:
    """Read a data set into memory. Download it first if it is not on this machine.

        >>> data = flipout_lab.load("digits")
        >>> data.train_images.shape, data.classes
        (torch.Size([1437, 1, 8, 8]), 10)

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
        return Data(name, *arrays, classes=count_classes(name, arrays), flip=True, crop=side // 8)
    if ":" in name:
        return _load_from_function(name)
    raise unknown("data set", name, [*DATA, "a folder", "module:function"])


def download(name: str) -> None:
    """Download a data set of the catalogue if it is not on this machine. Other names need no download."""
    if name in DATA:
        DATA[name].fetch(data_home())


def find_image_folder(name: str) -> Path | None:
    """The folder of this name, or the one below the data folder; None if there is neither."""
    return next((folder for folder in (Path(name), data_home() / name) if is_folder(folder)), None)


def check_image_size(name: str) -> None:
    """Raise an error if the images of a data set of the catalogue cannot be scaled."""
    if not DATA[name].resizable:
        raise LabError(f"--image-size applies to photographs only; the images of {name} have a fixed size")


def _load_from_function(name: str) -> Data:
    function = find(name)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise LabError(f"{name} is called without arguments ({error}); give every argument a default value") from error
    except ValueError:
        pass  # a function without a signature, such as one written in C
    returned: Any = function()
    given = returned if isinstance(returned, Data) else None
    if given is not None:
        returned = given.train_images, given.train_labels, given.test_images, given.test_labels
    arrays = check_arrays(name, returned)
    classes = count_classes(name, arrays)
    if given is None:
        return Data(name, *arrays, classes=classes)
    if classes > given.classes:
        raise LabError(f"{name} returns classes={given.classes}, but its largest label is {classes - 1}")
    return replace(given, train_labels=arrays[1], test_labels=arrays[3])


def check_arrays(name: str, returned: object) -> Arrays:
    """Return the arrays of a function of the user, with labels as int64. Anything that would train wrongly is an error.

    The test set may be empty: `--validate` does not use it.
    """
    if not isinstance(returned, (tuple, list)) or len(returned) != 4:
        found = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
        raise LabError(f"{name} must return {RETURNS}; it returns {found}")
    for value in returned:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise LabError(f"{name} must return {RETURNS}; one of them is of type {kind}: use torch.as_tensor")
    images, labels, test_images, test_labels = (value.detach() for value in returned)
    largest = _check(name, "training", images, labels), _check(name, "test", test_images, test_labels)
    for what, one, other in (
        ("dtype", images.dtype, test_images.dtype),
        ("shape", tuple(images.shape[1:]), tuple(test_images.shape[1:])),
    ):
        if one != other:
            raise LabError(f"the training images of {name} have {what} {one}, but the test images {other}")
    if min(largest) * OTHER_SCALE < max(largest) and len(images) and len(test_images):
        warnings.warn(
            f"the largest absolute value is {largest[0]:.4g} in the training images of {name} and {largest[1]:.4g} in "
            "the test images: floats are used as they are; are both scaled in the same way?",
            stacklevel=2,
        )
    if not len(images):
        raise LabError(f"{name} returns no training images; return {RETURNS}")
    if bool((labels == labels[0]).all()):
        raise LabError(f"all training labels of {name} are {int(labels[0])}; return at least two classes")
    return images, labels.long(), test_images, test_labels.long()


def _check(name: str, part: str, images: Tensor, labels: Tensor) -> float:
    """Check the images and labels of one part. Return the largest absolute value of floats; 0 for bytes."""
    shape, floats = tuple(labels.shape), images.is_floating_point()
    one_hot = ": are they one-hot? use labels.argmax(1)" if labels.dim() == 2 else ""
    advice = ": labels.flatten()" if shape[1:] == (1,) else one_hot
    wrong_images = {
        f"have shape {tuple(images.shape)}; expected (number, channels, height, width)": (
            images.dim() != 4 or 0 in images.shape[1:]
        ),
        f"are {images.dtype}; return bytes from 0 to 255 (uint8) or floats": not floats and images.dtype != torch.uint8,
    }
    wrong_labels = {
        f"have shape {shape}; return one class number per image{advice}": labels.dim() != 1,
        f"are {labels.numel()}, for {len(images)} images": labels.numel() != len(images),
        f"are {labels.dtype}; return integers, the numbers of classes from 0: labels.long()": (
            labels.is_floating_point() or labels.is_complex()
        ),
    }
    for what, problems in (("images", wrong_images), ("labels", wrong_labels)):
        for problem, found in problems.items():
            if found:
                raise LabError(f"the {part} {what} of {name} {problem}")
    largest = 0.0
    for start in range(0, len(images) if floats else 0, 4096):  # a part at a time, to save memory
        some = images[start : start + 4096].float()
        if not (finite := some.isfinite().flatten(1).all(1)).all():
            number = start + int((~finite).nonzero()[0])
            raise LabError(
                f"the {part} images of {name} contain NaN or infinity, first in image {number}; repair that image"
            )
        largest = max(largest, float(some.abs().max()))
    return largest


def count_classes(name: str, arrays: Arrays) -> int:
    """Return the number of classes: one more than the largest label. Classes may be missing in between."""
    both = torch.cat([arrays[1], arrays[3]])
    lowest, highest = int(both.min()), int(both.max())
    if lowest < 0:
        raise LabError(f"the smallest label of {name} is {lowest}; number the classes from 0")
    if highest >= max(MOST_CLASSES, len(arrays[1])):
        raise LabError(
            f"the largest label of {name} is {highest}, and the network would have as many outputs; number the classes "
            "from 0, for example with torch.unique(labels, return_inverse=True)[1]"
        )
    return highest + 1

"""Load a data set by name: from the catalogue, from an image folder, or from a function of the user."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ..errors import LabError, unknown
from ..files import is_folder
from ..plugins import find_function
from .data_catalogue import DATA
from .data_checks import check_arrays, count_classes
from .data_types import Data
from .downloads import data_home
from .image_folder import read_image_folder


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

"""Build a network by name: from the catalogue, from torchvision or timm, or with a function of the user."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ..errors import LabError, unknown
from ..plugins import find_function
from .model_catalogue import MODELS
from .network_sizes import Shape

LIBRARIES = ("torchvision", "timm")


def build(name: str, shape: Shape = (3, 32, 32), classes: int = 10, width: float = 1.0) -> nn.Module:
    """Build a network for images of a given shape.

    Args:
        name: a key of `MODELS`, `torchvision:NAME`, `timm:NAME`, or your own function as `module:function`.
        shape: channels, height and width of an image.
        classes: the number of classes.
        width: a factor for the number of channels of every layer; each layer keeps at least one.
    """
    if not width > 0:
        raise LabError(f"width is {width}; it must be a positive factor for the number of channels")
    if ":" in name:
        return _build_from_elsewhere(name, shape, classes, width)
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "module:function", "torchvision:NAME", "timm:NAME"])
    try:
        model = MODELS[name].make(shape, classes, width)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise LabError(f"{name} does not fit into memory with --width {width:g}; give a smaller width") from error
    _check_image_size(name, model, shape)
    return model


def _build_from_elsewhere(name: str, shape: Shape, classes: int, width: float) -> nn.Module:
    library, _, model_name = name.partition(":")
    if library in LIBRARIES:
        if width != 1:
            raise LabError(f"--width does not apply to networks of {library}; leave it out")
        model = _build_from_library(library, model_name, shape, classes)
    else:
        function = find_function(name)
        accepted = inspect.signature(function).parameters
        offered = {"shape": shape, "classes": classes, "width": width}
        model = function(**{key: value for key, value in offered.items() if key in accepted})
        if width != 1 and "width" not in accepted:
            raise LabError(f"{name} has no parameter width; leave --width out, or add the parameter to the function")
    if not isinstance(model, nn.Module):
        raise LabError(f"{name} returns an object of type {type(model).__name__}, not a torch.nn.Module")
    return model


def _build_from_library(library: str, model_name: str, shape: Shape, classes: int) -> Any:
    try:
        module = __import__(library, fromlist=["models"])
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises a RuntimeError
        raise LabError(f"{library} cannot be imported ({error}); install a build that matches your torch") from error
    try:
        if library == "timm":
            return module.create_model(model_name, num_classes=classes, in_chans=shape[0])
        return module.models.get_model(model_name, num_classes=classes)
    except (ValueError, RuntimeError) as error:
        raise LabError(f"{library} has no network {model_name!r}: {error}") from error


@torch.no_grad()
def _check_image_size(name: str, model: nn.Module, shape: Shape) -> None:
    """Run one image through the network. Images that are too small would fail later, inside a layer."""
    mode = model.training
    try:
        model.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        size = " x ".join(map(str, shape))
        raise LabError(f"{name} cannot be applied to images of {size}: {error}") from error
    finally:
        model.train(mode)

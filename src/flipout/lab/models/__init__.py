"""The networks of the lab, each made by `build(name, shape, classes, width)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import LabError, unknown
from ..plugins import find_function
from . import densenet, lenet, resnet, vgg


@dataclass(frozen=True)
class ModelInfo:
    """A network: what makes it, the data it is usually trained on, and a line about it."""

    make: Callable[[tuple[int, int, int], int, float], nn.Module]
    data: str
    about: str


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(lenet.mlp, "digits", "two hidden layers of 256 and 128, for any images"),
    "lenet-300-100": ModelInfo(lenet.lenet_300_100, "mnist", "two hidden layers of 300 and 100 (LeCun et al., 1998)"),
    "lenet-5": ModelInfo(lenet.lenet_5, "mnist", "two convolutions, 500 hidden units (Caffe's LeNet-5)"),
    "conv-6": ModelInfo(lenet.conv_6, "cifar10", "six convolutions, three dense layers (Frankle and Carbin, 2019)"),
    "resnet18": ModelInfo(resnet.resnet18, "cifar10", "ResNet18 as used for CIFAR-10 (He et al., 2016)"),
    "vgg19": ModelInfo(
        vgg.vgg19, "cifar10", "VGG19 with batch norm as used for CIFAR-10 (Simonyan and Zisserman, 2015)"
    ),
    "densenet121": ModelInfo(densenet.densenet121, "imagenette", "DenseNet121 for larger images (Huang et al., 2017)"),
}

LIBRARIES = ("torchvision", "timm")


def build(name: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, width: float = 1.0) -> nn.Module:
    """Makes a network for images of a shape (channels, height, width).

    Args:
        name: one of `MODELS`, `torchvision:NAME`, `timm:NAME`, or a function of yours as `module:function`.
        shape: of one image.
        classes: how many there are to tell apart.
        width: scales the number of channels, at least one each.
    """
    if not width > 0:
        raise LabError(f"width is {width}; give a positive factor for the number of channels")
    if ":" in name:
        return _foreign(name, shape, classes, width)
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "module:function", "torchvision:NAME", "timm:NAME"])
    model = MODELS[name].make(shape, classes, width)
    _try_out(name, model, shape)
    return model


def _foreign(name: str, shape: tuple[int, int, int], classes: int, width: float) -> nn.Module:
    library, _, what = name.partition(":")
    if library in LIBRARIES:
        if width != 1:
            raise LabError(f"--width does not go with {library}'s networks")
        model = _from_library(library, what, shape, classes)
    else:
        function = find_function(name)
        taken = inspect.signature(function).parameters
        offered = {"shape": shape, "classes": classes, "width": width}
        model = function(**{key: value for key, value in offered.items() if key in taken})
        if width != 1 and "width" not in taken:
            raise LabError(f"{name} takes no width; leave --width out, or let the function take it")
    if not isinstance(model, nn.Module):
        raise LabError(f"{name} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _from_library(library: str, what: str, shape: tuple[int, int, int], classes: int) -> Any:
    try:
        module = __import__(library, fromlist=["models"])
    except (ImportError, RuntimeError) as error:  # a torchvision of another torch fails with a RuntimeError
        raise LabError(f"{library} cannot be imported ({error}); install a build that fits your torch") from error
    try:
        if library == "timm":
            return module.create_model(what, num_classes=classes, in_chans=shape[0])
        return module.models.get_model(what, num_classes=classes)
    except (ValueError, RuntimeError) as error:
        raise LabError(f"{library} has no network {what!r}: {error}") from error


@torch.no_grad()
def _try_out(name: str, model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Images that are too small end inside some layer with a message about kernels; tell it here instead."""
    mode = model.training
    try:
        model.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise LabError(f"{name} does not fit images of {' x '.join(map(str, shape))}: {error}") from error
    finally:
        model.train(mode)

"""The catalogue of networks. To add one, write it in a new file and add its record here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import LabError, find, unknown
from .networks import (
    Shape,
    conv_6,
    densenet121,
    lenet_5,
    lenet_300_100,
    mlp,
    resnet10,
    resnet18,
    resnet18_strided,
    vgg19,
)


@dataclass(frozen=True)
class ModelInfo:
    """The catalogue record of a network."""

    title: str  # in reports
    about: str  # in `flipout models`
    make: Callable[[Shape, int, float], nn.Module]  # called with the shape of an image, the classes, the width
    data: str  # the data set if none is given
    convolutional: bool = True


SMALL_RESNET = (
    "ResNet with one block per stage and a strided stem; `--width 0.25` has 0.3 M weights and takes about half a "
    "minute an epoch on one core"
)
MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo("MLP", "two hidden layers of 256 and 128 units, for images of any size", mlp, "digits", False),
    "lenet-300-100": ModelInfo(
        "LeNet-300-100", "two hidden layers of 300 and 100 units (LeCun et al., 1998)", lenet_300_100, "mnist", False
    ),
    "lenet-5": ModelInfo("LeNet-5", "two convolutions, 500 hidden units (Caffe's LeNet-5)", lenet_5, "mnist"),
    "conv-6": ModelInfo("Conv-6", "six convolutions, three dense layers (Frankle and Carbin, 2019)", conv_6, "cifar10"),
    "resnet18": ModelInfo("ResNet18", "ResNet18 for CIFAR-10 (He et al., 2016)", resnet18, "cifar10"),
    "resnet18-strided": ModelInfo(
        "ResNet18 with a strided stem",
        "ResNet18 that halves the image first: a quarter of the multiply-adds; `--width 0.5` has 2.8 M weights",
        resnet18_strided,
        "cifar10",
    ),
    "resnet10": ModelInfo("ResNet10", SMALL_RESNET, resnet10, "cifar10"),
    "vgg19": ModelInfo("VGG19", "VGG19 with batch norm for CIFAR-10 (Simonyan and Zisserman, 2015)", vgg19, "cifar10"),
    "densenet121": ModelInfo(
        "DenseNet121", "DenseNet121 for larger images (Huang et al., 2017)", densenet121, "imagenette"
    ),
}


def model_title(name: str) -> str:
    """The title of a network in reports; the name itself for a network that is not in the catalogue."""
    return MODELS[name].title if name in MODELS else name


LIBRARIES = ("torchvision", "timm")


def build(name: str, shape: Shape = (3, 32, 32), classes: int = 10, width: float = 1.0) -> nn.Module:
    """Build a network for images of a given shape.

        >>> network = flipout_lab.build("resnet10", shape=(3, 32, 32), classes=10, width=0.25)

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
    except RuntimeError as error:  # from torch's allocator
        raise LabError(f"{name} cannot be built with --width {width:g}: {error}") from error
    _check_image_size(name, model, shape)
    return model


def _build_from_elsewhere(name: str, shape: Shape, classes: int, width: float) -> nn.Module:
    library, _, model_name = name.partition(":")
    if library in LIBRARIES:
        if width != 1:
            raise LabError(f"--width does not apply to networks of {library}; leave it out")
        model = _build_from_library(library, model_name, shape, classes)
    else:
        function = find(name)
        accepted = inspect.signature(function).parameters
        offered = {"shape": shape, "classes": classes, "width": width}
        model = function(**{key: value for key, value in offered.items() if key in accepted})
        if width != 1 and "width" not in accepted:
            raise LabError(f"{name} has no parameter width; leave --width out, or add the parameter to the function")
    if not isinstance(model, nn.Module):
        raise LabError(f"{name} returns an object of type {type(model).__name__}; return a torch.nn.Module")
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

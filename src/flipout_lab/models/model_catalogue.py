"""The catalogue of networks. To add one, write it in a new file and add its record here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from .densenet import densenet121
from .network_sizes import Shape
from .perceptrons import lenet_300_100, mlp
from .resnet import resnet10, resnet18
from .small_convnets import conv_6, lenet_5
from .vgg import vgg19


@dataclass(frozen=True)
class ModelInfo:
    """The catalogue record of a network."""

    title: str  # in reports
    about: str  # in `flipout models`
    make: Callable[[Shape, int, float], nn.Module]  # called with the shape of an image, the classes, the width
    data: str  # the data set if none is given
    convolutional: bool = True


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(
        title="MLP",
        about="two hidden layers of 256 and 128 units, for images of any size",
        make=mlp,
        data="digits",
        convolutional=False,
    ),
    "lenet-300-100": ModelInfo(
        title="LeNet-300-100",
        about="two hidden layers of 300 and 100 units (LeCun et al., 1998)",
        make=lenet_300_100,
        data="mnist",
        convolutional=False,
    ),
    "lenet-5": ModelInfo(
        title="LeNet-5",
        about="two convolutions, 500 hidden units (Caffe's LeNet-5)",
        make=lenet_5,
        data="mnist",
    ),
    "conv-6": ModelInfo(
        title="Conv-6",
        about="six convolutions, three dense layers (Frankle and Carbin, 2019)",
        make=conv_6,
        data="cifar10",
    ),
    "resnet18": ModelInfo(
        title="ResNet18",
        about="ResNet18 for CIFAR-10 (He et al., 2016)",
        make=resnet18,
        data="cifar10",
    ),
    "resnet10": ModelInfo(
        title="ResNet10",
        about="ResNet with one block per stage and a strided stem; `--width 0.25` has 0.3 M weights and takes about "
        "half a minute an epoch on one core",
        make=resnet10,
        data="cifar10",
    ),
    "vgg19": ModelInfo(
        title="VGG19",
        about="VGG19 with batch norm for CIFAR-10 (Simonyan and Zisserman, 2015)",
        make=vgg19,
        data="cifar10",
    ),
    "densenet121": ModelInfo(
        title="DenseNet121",
        about="DenseNet121 for larger images (Huang et al., 2017)",
        make=densenet121,
        data="imagenette",
    ),
}


def model_title(name: str) -> str:
    """The title of a network in reports; the name itself for a network that is not in the catalogue."""
    return MODELS[name].title if name in MODELS else name

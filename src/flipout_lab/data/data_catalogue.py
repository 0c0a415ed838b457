"""The catalogue of data sets. To add one, write its reader in a new file and add its record here."""

from __future__ import annotations

from .cifar10 import read_cifar10
from .data_types import DataInfo
from .idx_files import read_fashion_mnist, read_mnist
from .imagenette import imagenette_reader
from .sklearn_digits import read_digits

DATA: dict[str, DataInfo] = {
    "digits": DataInfo(
        title="digits",
        about="1,797 handwritten digits of 8 x 8, included in scikit-learn",
        read=read_digits,
        train=1437,
        shape=(1, 8, 8),
    ),
    "mnist": DataInfo(
        title="MNIST",
        about="70,000 handwritten digits of 28 x 28",
        read=read_mnist,
        train=60_000,
        shape=(1, 28, 28),
    ),
    "fashion-mnist": DataInfo(
        title="Fashion-MNIST",
        about="70,000 images of clothes of 28 x 28",
        read=read_fashion_mnist,
        train=60_000,
        shape=(1, 28, 28),
    ),
    "cifar10": DataInfo(
        title="CIFAR-10",
        about="60,000 colour images of 32 x 32 in ten classes",
        read=read_cifar10,
        train=50_000,
        shape=(3, 32, 32),
        validation=10_000,
        flip=True,
        crop=4,
    ),
}
for _suffix, _side in (("", 224), ("-320", 224), ("-160", 128)):
    DATA[f"imagenette{_suffix}"] = DataInfo(
        title=f"Imagenette{_suffix}",
        about=f"13,394 photographs in ten classes{f', {_suffix[1:]} pixels on the shorter side' if _suffix else ''}",
        read=imagenette_reader(f"imagenette2{_suffix}", _side),
        train=9_469,
        shape=(3, _side, _side),
        validation=2_000,
        flip=True,
        crop=_side // 8,
        resizable=True,
    )


def data_title(name: str) -> str:
    """The title of a data set in reports; the name itself for a folder or a function of the user."""
    return DATA[name].title if name in DATA else name

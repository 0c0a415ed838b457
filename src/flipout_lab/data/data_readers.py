"""The readers of data sets: scikit-learn's digits, MNIST, Fashion-MNIST, CIFAR-10, image folders, Imagenette."""

from __future__ import annotations

import gzip
import pickletools
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from ..errors import LabError
from .downloads import Source, check, fetch, unpacked

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, training labels, test images, test labels."""

TRAIN = 1437


def read_digits(home: Path, image_size: int | None) -> Arrays:
    """The first 1,437 images of a fixed random order for training, the other 360 for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] * (255 / 16)
    y = torch.tensor(labels)[order]
    return x[:TRAIN].byte(), y[:TRAIN], x[TRAIN:].byte(), y[TRAIN:]


NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


IDX = {
    "mnist": (
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    "fashion-mnist": (
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
}
"""The data sets in the IDX format: the addresses to download them from, and the MD5 of the content of each file."""


def fetch_idx(home: Path, *, name: str) -> list[Path]:
    addresses, checksums = IDX[name]
    return [
        fetch(home / name, Source(file, md5, [url + file for url in addresses], of_content=True))
        for file, md5 in zip(NAMES, checksums, strict=True)
    ]


def read_idx(home: Path, image_size: int | None, *, name: str) -> Arrays:
    """MNIST and Fashion-MNIST: four gzipped files in the IDX format."""
    files = fetch_idx(home, name=name)
    images, labels, test_images, test_labels = (parse_idx(gzip.decompress(f.read_bytes()), f.name) for f in files)
    return images.unsqueeze(1), labels.long(), test_images.unsqueeze(1), test_labels.long()


def parse_idx(content: bytes, name: str) -> Tensor:
    """The array in an IDX file: two zero bytes, the type (8: bytes), the number of dimensions, the sizes, the data."""
    zeros, kind, dimensions = struct.unpack(">HBB", content[:4])
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    data = content[4 + 4 * dimensions :]
    if zeros or kind != 8 or len(data) != int(np.prod(shape)):
        raise LabError(f"{name} is not a complete IDX file of bytes; delete it to download it again")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape).copy())


ARCHIVE = Source(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    ["https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"],
)
FOLDER = "cifar-10-batches-py"
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
PIXELS = 3 * 32 * 32


def fetch_cifar10(home: Path) -> Path:
    return unpacked(home / "cifar10", FOLDER, ARCHIVE)


def read_cifar10(home: Path, image_size: int | None) -> Arrays:
    folder = fetch_cifar10(home)
    batches = []
    for name, md5 in MD5.items():
        path = folder / name
        if not path.exists():
            raise LabError(f"{path} is missing: restore it, or delete {folder} to unpack the archive again")
        check(path, md5)
        batches.append(parse_batch(path.read_bytes(), name))
    images = torch.cat([pixels for pixels, _ in batches[:5]])
    labels = torch.cat([classes for _, classes in batches[:5]])
    return images, labels, *batches[5]


def parse_batch(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """The images and the labels of a batch.

    The files are pickles with a fixed structure: a dict with one long string of pixels and, under `labels`, a list of
    small integers. This function reads the pickle's opcodes as data. It executes nothing.
    """
    pixels, labels, in_labels = b"", list[int](), False
    for opcode, argument, _ in pickletools.genops(content):
        if isinstance(argument, str):
            in_labels = argument == "labels"
            if len(argument) > len(pixels):
                pixels = argument.encode("latin-1")
        elif in_labels and opcode.name == "BININT1":
            labels.append(int(argument or 0))
    if not labels or len(pixels) != len(labels) * PIXELS:
        raise LabError(f"{name} is not a CIFAR-10 batch: it has {len(pixels)} bytes of pixels for {len(labels)} labels")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, 32, 32).copy()
    return torch.from_numpy(images), torch.tensor(labels)


SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def read_image_folder(folder: Path, side: int) -> Arrays:
    """Training images, labels, test images, labels: the shorter side scaled to `side`, then cropped to the centre."""
    test = next((folder / name for name in ("test", "val", "valid") if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        raise LabError(f"{folder} needs the folders train and test (or val), each with one folder per class")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(classes) < 2:
        raise LabError(f"{folder / 'train'} needs at least two classes, with one folder per class")
    if extra := sorted({path.name for path in test.iterdir() if path.is_dir()} - set(classes)):
        raise LabError(f"{test} has classes that are missing in {folder / 'train'}: {', '.join(extra)}")
    return *_read_split(folder / "train", classes, side), *_read_split(test, classes, side)


def image_files(split: Path) -> list[Path]:
    """The image files below a folder of class folders, in a fixed order."""
    return sorted(path for path in split.glob("*/*") if path.suffix.lower() in SUFFIXES)


def _read_split(split: Path, classes: list[str], side: int) -> tuple[Tensor, Tensor]:
    files = [path for path in image_files(split) if path.parent.name in classes]
    if not files:
        raise LabError(f"there are no images below {split}; put them in folders, one for each class")
    labels = torch.tensor([classes.index(path.parent.name) for path in files])
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:  # decoding releases Python's global lock
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # the warning does not name the file
        decoded = pool.map(lambda path: _decode(path, side), files)
        for i, image in enumerate(track(decoded, f"reading {split.name}", len(files), transient=True)):
            images[i] = image
    return images, labels


def _decode(path: Path, side: int) -> Tensor:
    try:
        with Image.open(path) as file:
            scale = side / min(file.size)
            width, height = (max(side, round(length * scale)) for length in file.size)
            image = file.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            left, top = (width - side) // 2, (height - side) // 2
            pixels = np.asarray(image.crop((left, top, left + side, top + side)))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise LabError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels ({error}); scale it down or remove it"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise LabError(f"{path} cannot be read as an image ({error}); repair it or remove it") from error
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


ARCHIVES = {
    "imagenette2": "fe2fc210e6bb7c5664d602c3cd71e612",
    "imagenette2-320": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2-160": "e793b78cc4c9e9a4ccc0c1155377a412",
}
COMPLETE = (9_469, 3_925)


def fetch_imagenette(home: Path, *, name: str) -> Path:
    url = f"https://s3.amazonaws.com/fast-ai-imageclas/{name}.tgz"
    return unpacked(home, name, Source(f"{name}.tgz", ARCHIVES[name], [url]))


def read_imagenette(home: Path, image_size: int | None, *, name: str, default_side: int) -> Arrays:
    """Imagenette, ten classes of ImageNet, in one of the three sizes it is published in."""
    folder = fetch_imagenette(home, name=name)
    found = tuple(len(image_files(folder / part)) for part in ("train", "val"))
    if found != COMPLETE:
        raise LabError(
            f"{folder} has {found[0]:,} training and {found[1]:,} validation images; Imagenette has {COMPLETE[0]:,} "
            f"and {COMPLETE[1]:,}. Delete the folder to unpack it again, or use --data {folder} to train on a part "
            "of it on purpose"
        )
    return read_image_folder(folder, image_size or default_side)

"""CIFAR-10: pickled batches, read without unpickling anything."""

from __future__ import annotations

import pickletools
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from .data_types import Arrays
from .downloads import Source, check, fetch

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


def read_cifar10(home: Path, image_size: int | None) -> Arrays:
    """Training images, labels, test images, labels."""
    folder = home / "cifar10" / FOLDER
    if not folder.is_dir():
        with tarfile.open(fetch(home / "cifar10", ARCHIVE)) as archive:
            archive.extractall(home / "cifar10", filter="data")
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

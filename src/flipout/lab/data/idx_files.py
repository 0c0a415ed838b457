"""MNIST and Fashion-MNIST: four gzipped files in the IDX format."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from .data_types import Arrays
from .downloads import Source, fetch

NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


@dataclass(frozen=True)
class IdxDataSet:
    """A data set in this format: its folder, the addresses to download it from, the checksums of its four files."""

    folder: str
    addresses: tuple[str, ...]
    md5: tuple[str, str, str, str]


MNIST = IdxDataSet(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = IdxDataSet(
    "fashion-mnist",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


def read_mnist(home: Path, image_size: int | None) -> Arrays:
    return read_idx_files(home, MNIST)


def read_fashion_mnist(home: Path, image_size: int | None) -> Arrays:
    return read_idx_files(home, FASHION_MNIST)


def read_idx_files(home: Path, data_set: IdxDataSet) -> Arrays:
    """Training images, labels, test images, labels."""
    parts = []
    for name, md5 in zip(NAMES, data_set.md5, strict=True):
        path = fetch(home / data_set.folder, Source(name, md5, [url + name for url in data_set.addresses]))
        parts.append(parse_idx(gzip.decompress(path.read_bytes()), name))
    images, labels, test_images, test_labels = parts
    return images.unsqueeze(1), labels.long(), test_images.unsqueeze(1), test_labels.long()


def parse_idx(content: bytes, name: str) -> Tensor:
    """The array in an IDX file: two zero bytes, the type (8: bytes), the number of dimensions, the sizes, the data."""
    zeros, kind, dimensions = struct.unpack(">HBB", content[:4])
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    data = content[4 + 4 * dimensions :]
    if zeros or kind != 8 or len(data) != int(np.prod(shape)):
        raise LabError(f"{name} is not a complete IDX file of bytes")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape).copy())

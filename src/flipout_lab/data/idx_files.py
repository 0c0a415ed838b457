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
    """A data set in this format: its folder, the addresses to download it from, and checksums of its four files.

    `md5` are those of the files as published, `content_md5` those of their content.
    """

    folder: str
    addresses: tuple[str, ...]
    md5: tuple[str, str, str, str]
    content_md5: tuple[str, str, str, str]


MNIST = IdxDataSet(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
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
    (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)


def read_mnist(home: Path, image_size: int | None) -> Arrays:
    return read_idx_files(home, MNIST)


def read_fashion_mnist(home: Path, image_size: int | None) -> Arrays:
    return read_idx_files(home, FASHION_MNIST)


def read_idx_files(home: Path, data_set: IdxDataSet) -> Arrays:
    """Training images, labels, test images, labels."""
    parts = []
    for name, md5, content_md5 in zip(NAMES, data_set.md5, data_set.content_md5, strict=True):
        source = Source(name, md5, [url + name for url in data_set.addresses], content_md5)
        path = fetch(home / data_set.folder, source)
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

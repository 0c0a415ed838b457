"""What writing and reading a sparse file share: format, version, checksum, and tensors as raw bytes."""

from __future__ import annotations

import ctypes
import hashlib

import torch
from torch import Tensor

FORMAT, VERSION = "flipout-sparse", "1"


def checksum(index: Tensor, data: Tensor) -> str:
    """Return the SHA-256 of the index followed by the data."""
    return hashlib.sha256(raw_bytes(index) + raw_bytes(data)).hexdigest()


def raw_bytes(stored: Tensor) -> bytes:
    """Return a tensor of bytes as `bytes`."""
    return ctypes.string_at(stored.data_ptr(), len(stored)) if len(stored) else b""


def as_byte_tensor(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor's elements, in row-major order, as a tensor of bytes."""
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def as_words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor's elements as integers, one row for each element."""
    size = tensor.dtype.itemsize
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
    return as_byte_tensor(tensor).view(word).view(tensor.numel(), size // word.itemsize)

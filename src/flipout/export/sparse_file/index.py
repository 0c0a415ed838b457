"""The index of a sparse file: what it says of each tensor, each of them possible by itself."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from .positions_coding import MOST_LOW_BITS, gap_bytes, mask_bytes

LONGEST = 1 << 62
"""No tensor has as many elements."""

MOST_AXES = 64
"""No tensor has more, as far as torch can work with it."""

DTYPES: dict[str, torch.dtype] = {
    name: dtype
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SparseFileError(ValueError):
    """A file that is no sparse file, is damaged, or claims what cannot be."""


@dataclass(frozen=True)
class Entry:
    """A tensor as the index tells of it: stored in `bytes` bytes as `coding`, or the same as an earlier one."""

    name: str
    same: int | None = None
    dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()
    coding: str = "zeros"
    count: int = 0
    low: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def positions(self) -> int:
        """The bytes that say where the stored values belong."""
        codings = {"mask": mask_bytes(self.size), "gaps": gap_bytes(self.size, self.count, self.low)}
        return codings.get(self.coding, 0)

    @property
    def bytes(self) -> int:
        return self.positions + self.count * self.dtype.itemsize


def parse(text: bytes) -> list[Entry]:
    """The entries of an index, each of them possible by itself."""
    try:
        listed = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise SparseFileError(f"its index is not JSON ({error})") from error
    if not isinstance(listed, list):
        raise SparseFileError("its index is not a list")
    entries: list[Entry] = []
    for fields in listed:
        entry = _entry(fields)
        if entry is None or (entry.same is not None and not _has_own(entries, entry.same)):
            raise SparseFileError(f"its index has an entry that cannot be: {str(fields)[:100]}")
        entries.append(entry)
    if len({entry.name for entry in entries}) != len(entries):
        raise SparseFileError("its index has a name twice")
    return entries


def _has_own(entries: list[Entry], number: int) -> bool:
    return number < len(entries) and entries[number].same is None


def _entry(fields: Any) -> Entry | None:
    """An entry of the index, or None if it is malformed."""
    match fields:
        case [str(name), int(same)] if _whole(same):
            return Entry(name, same)
        case [str(name), str(dtype), list(shape), str(coding), *numbers] if dtype in DTYPES and _whole(
            *shape, *numbers
        ):
            if len(shape) > MOST_AXES or not _possible(shape):
                return None
            size = math.prod(shape)
            match coding, numbers:
                case ("zeros", []):
                    return Entry(name, None, DTYPES[dtype], tuple(shape), coding)
                case ("dense", []):
                    return Entry(name, None, DTYPES[dtype], tuple(shape), coding, size)
                case ("mask", [count]) if count <= size:
                    return Entry(name, None, DTYPES[dtype], tuple(shape), coding, count)
                case ("gaps", [count, low]) if count <= size and low <= MOST_LOW_BITS:
                    return Entry(name, None, DTYPES[dtype], tuple(shape), coding, count, low)
    return None


def _possible(shape: list[int]) -> bool:
    """Whether there can be as many elements, with sides of zero taken for ones."""
    size = 1
    for side in shape:
        size *= max(side, 1)
        if size >= LONGEST:  # at once, for the product of large numbers takes long
            return False
    return True


def _whole(*numbers: object) -> bool:
    return all(type(number) is int and 0 <= number < LONGEST for number in numbers)

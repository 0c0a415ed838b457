"""The index of a sparse file, an entry for each tensor, and the coding of a tensor as bytes.

Parsing rejects every entry that is not valid on its own. Positions of nonzero elements are one bit per element, or the
gaps between positions. Bits are counted from the lowest of each byte. Nothing loops over elements in Python.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_ELEMENTS = 1 << 62
"""Tensors have fewer elements than this."""
MAX_AXES = 64
"""The most axes that torch supports."""
MAX_LOW_BITS = 40
CODINGS = {"zeros": 0, "dense": 0, "mask": 1, "gaps": 2}
"""How a tensor is stored, and how many numbers its entry has for that."""

DTYPES: dict[str, torch.dtype] = {
    name: dtype
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SparseFileError(ValueError):
    """The file is not a sparse file, is damaged, or has an invalid index."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the index.

    Args:
        name: its name in the `state_dict`.
        same: the number of the entry that it is tied to; None if it is stored itself.
        dtype: its dtype.
        shape: its shape.
        coding: how it is stored, one of `CODINGS`.
        count: the number of stored values.
        low: for "gaps", the number of low bits of each position.
    """

    name: str
    same: int | None = None
    dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()
    coding: str = "zeros"
    count: int = 0
    low: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def position_bytes(self) -> int:
        """The number of bytes that encode the positions of the stored values."""
        codings = {"mask": mask_bytes(self.size), "gaps": gap_bytes(self.size, self.count, self.low)}
        return codings.get(self.coding, 0)

    @property
    def stored_bytes(self) -> int:
        """The number of bytes of positions and values."""
        return self.position_bytes + self.count * self.dtype.itemsize


def parse_index(text: bytes) -> list[TensorEntry]:
    """Return the entries of an index, each of them checked."""
    try:
        listed = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise SparseFileError(f"its index is not JSON ({error})") from error
    if not isinstance(listed, list):
        raise SparseFileError("its index is not a list")
    entries: list[TensorEntry] = []
    stored: set[int | None] = {None}
    for number, fields in enumerate(listed):
        entry = _parse_entry(fields)
        if entry is None or entry.same not in stored:
            raise SparseFileError(f"its index has an invalid entry: {str(fields)[:100]}")
        if entry.same is None:
            stored.add(number)
        entries.append(entry)
    if len({entry.name for entry in entries}) != len(entries):
        raise SparseFileError("its index contains a name twice")
    return entries


def _parse_entry(fields: Any) -> TensorEntry | None:
    """Return an entry of the index, or None if it is invalid."""
    match fields:
        case [str(name), int(same)] if _are_valid_numbers(same):
            return TensorEntry(name, same)
        case [str(name), str(dtype), list(shape), str(coding), *numbers] if (
            dtype in DTYPES
            and len(numbers) == CODINGS.get(coding)
            and _are_valid_numbers(*shape, *numbers)
            and _is_valid_shape(shape)
        ):
            size = math.prod(shape)
            count, low = {"zeros": (0, 0), "dense": (size, 0)}.get(coding) or (*numbers, 0)[:2]
            if count <= size and low <= MAX_LOW_BITS:
                return TensorEntry(name, None, DTYPES[dtype], tuple(shape), coding, count, low)
    return None


def _is_valid_shape(shape: list[int]) -> bool:
    """Return whether torch has so many axes and elements, with axes of size zero counted as one."""
    size = 1
    for side in shape[: MAX_AXES + 1]:
        size *= max(side, 1)
        if size >= MAX_ELEMENTS:  # stop early, because products of large numbers take long
            return False
    return len(shape) <= MAX_AXES


def _are_valid_numbers(*numbers: object) -> bool:
    return all(type(number) is int and 0 <= number < MAX_ELEMENTS for number in numbers)


def encode(name: str, tensor: Tensor) -> tuple[list[object], list[Tensor]]:
    """Return an entry of the index, and the parts of the data that belong to it."""
    words, size = _as_words(tensor), tensor.numel()
    nonzero = (words != 0).any(1)
    count = int(nonzero.sum())
    low = best_low(size, count)
    width = tensor.dtype.itemsize
    costs = {
        "dense": size * width,
        "mask": mask_bytes(size) + count * width,
        "gaps": gap_bytes(size, count, low) + count * width,
    }
    coding = min(costs, key=lambda each: costs[each]) if count else "zeros"
    entry: list[object] = [name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), coding]
    if coding == "zeros":
        return entry, []
    if coding == "dense":
        return entry, [_as_bytes(tensor)]
    values = words[nonzero].flatten().view(torch.uint8)
    if coding == "mask":
        return [*entry, count], [pack(nonzero), values]
    return [*entry, count, low], [encode_gaps(nonzero.nonzero().flatten(), size, low), values]


def decode(entry: TensorEntry, positions: Tensor, values: Tensor) -> Tensor:
    """Return a dense tensor, given the bytes of the positions of its values and of the values."""
    if entry.dtype == torch.bool and values.numel() and int(values.max()) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    if entry.coding == "dense":
        return values.view(entry.dtype).view(entry.shape)
    tensor = torch.zeros(entry.size * entry.dtype.itemsize, dtype=torch.uint8).view(entry.dtype).view(entry.shape)
    if entry.coding == "zeros":
        return tensor
    if entry.coding == "mask":
        where = unpack(positions, entry.size).nonzero().flatten()
    else:
        where = decode_gaps(positions, entry.size, entry.count, entry.low)
    if len(where) != entry.count:
        raise ValueError(f"{len(where):,} elements are marked, but the index lists {entry.count:,}")
    words = _as_words(tensor)
    words[where] = values.view(words.dtype).view(entry.count, words.shape[1])
    return tensor


def pack(bits: Tensor) -> Tensor:
    """Pack a vector of booleans into bytes, padded with zeros."""
    padded = torch.zeros(-(-bits.numel() // 8) * 8, dtype=torch.uint8)
    padded[: bits.numel()] = bits
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of some bytes; the padding must be zero."""
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()
    if bits[count:].any():
        raise ValueError("bits are set after the last one")
    return bits[:count]


def mask_bytes(size: int) -> int:
    """Return the number of bytes of one bit for each of `size` elements."""
    return -(-size // 8)


def high_bits(size: int, count: int, low: int) -> int:
    """Return the number of bits of the high parts of `count` positions below `size`: a one each, a zero per step."""
    return count + (max(size - 1, 0) >> low)


def gap_bytes(size: int, count: int, low: int) -> int:
    """Return the number of bytes of `count` positions below `size` as gaps, with `low` low bits stored directly."""
    return -(-count * low // 8) + -(-high_bits(size, count, low) // 8)


def best_low(size: int, count: int) -> int:
    """Return the number of low bits that needs the fewest bytes."""
    return min(range(MAX_LOW_BITS + 1), key=lambda low: gap_bytes(size, count, low))


def encode_gaps(positions: Tensor, size: int, low: int) -> Tensor:
    """Encode increasing positions below `size`: their low bits, then the gaps of the high parts in unary (Elias-Fano).

    Position `p` with number `i` sets bit `(p >> low) + i` of the second part: a zero for each step that the high part
    has grown since the last position, and a one.
    """
    count = len(positions)
    low_bits = torch.empty(count, low, dtype=torch.bool)
    for bit in range(low):
        low_bits[:, bit] = positions >> bit & 1
    unary = torch.zeros(high_bits(size, count, low), dtype=torch.bool)
    unary[(positions >> low) + torch.arange(count)] = True
    return torch.cat([pack(low_bits.flatten()), pack(unary)])


def decode_gaps(packed: Tensor, size: int, count: int, low: int) -> Tensor:
    """Return the positions that were encoded; check that they are `count` increasing positions below `size`."""
    split = -(-count * low // 8)
    low_bits = unpack(packed[:split], count * low).view(count, low)
    high = unpack(packed[split:], high_bits(size, count, low)).nonzero().flatten()
    if len(high) != count:
        raise ValueError(f"{len(high):,} positions are stored, but the index lists {count:,}")
    positions = high - torch.arange(count) << low
    for bit in range(low):
        positions += low_bits[:, bit].long() << bit
    if count and (int(positions[-1]) >= size or not bool((positions.diff() > 0).all())):
        raise ValueError("its positions do not increase, or exceed the number of elements")
    return positions


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor's elements, in row-major order, as a tensor of bytes."""
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def _as_words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor's elements as integers, one row for each element."""
    size = tensor.dtype.itemsize
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
    return _as_bytes(tensor).view(word).view(tensor.numel(), size // word.itemsize)

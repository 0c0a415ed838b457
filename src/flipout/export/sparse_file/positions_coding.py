"""Encode the positions of nonzero elements in few bytes: one bit per element, or the gaps between positions.

Encoded data are tensors of bytes, and bits are counted from the lowest bit of each byte. Nothing loops over elements in
Python.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOW_BITS = 40


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

"""Which elements of a tensor are not zero, in few bytes: a bit for each, or the gaps between them.

Everything is a tensor of bytes, and bits are counted from the lowest of each byte. No step goes element by element in
Python.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_LOW_BITS = 40


def pack(bits: Tensor) -> Tensor:
    """A vector of booleans, eight to a byte, filled up with zeros."""
    padded = torch.zeros(-(-bits.numel() // 8) * 8, dtype=torch.uint8)
    padded[: bits.numel()] = bits
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first `count` bits of some bytes; what `pack` filled up must be zero."""
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()
    if bits[count:].any():
        raise ValueError("there are bits behind the last one")
    return bits[:count]


def mask_bytes(size: int) -> int:
    """What a bit for each of `size` elements takes."""
    return -(-size // 8)


def high_bits(size: int, count: int, low: int) -> int:
    """How many bits the high parts of `count` positions below `size` take: a one each, a zero for each step."""
    return count + (max(size - 1, 0) >> low)


def gap_bytes(size: int, count: int, low: int) -> int:
    """What `count` positions below `size` take as gaps, with `low` bits of each stored as they are."""
    return -(-count * low // 8) + -(-high_bits(size, count, low) // 8)


def best_low(size: int, count: int) -> int:
    """The number of low bits that takes the fewest bytes."""
    return min(range(MOST_LOW_BITS + 1), key=lambda low: gap_bytes(size, count, low))


def encode_gaps(positions: Tensor, size: int, low: int) -> Tensor:
    """Rising positions below `size` as their low bits, then the gaps between their high parts in unary (Elias-Fano).

    The position `p` of number `i` sets bit `(p >> low) + i` of the second part: as many zeros as the high part has
    grown since the last position, and a one.
    """
    count = len(positions)
    each = torch.empty(count, low, dtype=torch.bool)
    for bit in range(low):
        each[:, bit] = positions >> bit & 1
    unary = torch.zeros(high_bits(size, count, low), dtype=torch.bool)
    unary[(positions >> low) + torch.arange(count)] = True
    return torch.cat([pack(each.flatten()), pack(unary)])


def decode_gaps(packed: Tensor, size: int, count: int, low: int) -> Tensor:
    """The positions that `encode_gaps` was given, checked to be `count` rising ones below `size`."""
    split = -(-count * low // 8)
    each = unpack(packed[:split], count * low).view(count, low)
    high = unpack(packed[split:], high_bits(size, count, low)).nonzero().flatten()
    if len(high) != count:
        raise ValueError(f"{len(high):,} positions are stored, where {count:,} are announced")
    positions = high - torch.arange(count) << low
    for bit in range(low):
        positions += each[:, bit].long() << bit
    if count and (int(positions[-1]) >= size or not bool((positions.diff() > 0).all())):
        raise ValueError("the positions do not rise, or lie behind the last element")
    return positions

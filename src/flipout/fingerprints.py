"""Fingerprints of tensors: one number that changes with any bit, whatever the device or the order of the additions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from .ranking.host_numbers import read_integers
from .views.dtensors import local_of

BLOCK = 1 << 15
"""In units of eight bytes: a block and its factors stay in the processor's cache."""


@torch.no_grad()
def fingerprints(tensors: Iterable[Tensor]) -> list[int]:
    """One number for each tensor: the sum of its bytes, eight at a time, times a number for each position. Of a
    DTensor, the shard that this rank holds counts."""
    return read_integers([_fingerprint(tensor) for tensor in tensors])


def _fingerprint(tensor: Tensor) -> Tensor:
    flat = local_of(tensor).detach().contiguous().reshape(-1)
    if flat.storage_offset() or flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg().clone()  # eight bytes at a time need a start at a multiple of eight
    content = flat.view(torch.uint8)
    whole = len(content) // 8 * 8
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    # Integer sums wrap around, in any order alike.
    for number, block in enumerate(torch.split(content[:whole].view(torch.int64), BLOCK)):
        total += (block * _factors(flat.device)[: len(block)]).sum() * (2 * number + 1)
    rest = content[whole:].long()
    return total + (rest * _factors(flat.device)[BLOCK : BLOCK + len(rest)]).sum() + len(content)


@cache
def _factors(device: torch.device) -> Tensor:
    """An odd random number for each position of a block, and for the last bytes of a tensor."""
    mixed = torch.arange(1, BLOCK + 8, dtype=torch.int64, device=device) * 0x1E3779B97F4A7C15
    mixed ^= mixed >> 29
    mixed *= 0x3F58476D1CE4E5B9
    mixed ^= mixed >> 32
    return mixed | 1

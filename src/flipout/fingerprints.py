"""Fingerprints of tensors: one number that changes with any bit, whatever the device or the order of the additions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

BLOCK = 1 << 20
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of each size in bytes."""


@torch.no_grad()
def fingerprints(tensors: Iterable[Tensor]) -> list[int]:
    """One number for each tensor: the sum of its elements, read as integers, times a number for each position."""
    sums = [_fingerprint(tensor) for tensor in tensors]
    return [int(value) for value in torch.stack([value.cpu() for value in sums])] if sums else []


def _fingerprint(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    flat = flat.view(WHOLE[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for first in range(0, len(flat), BLOCK):
        block = flat[first : first + BLOCK].long()
        positions = torch.arange(first, first + len(block), dtype=torch.int64, device=flat.device)
        total += ((block + 1) * _factors(positions)).sum()  # integer sums wrap around in any order alike
    return total


def _factors(positions: Tensor) -> Tensor:
    """An odd random number for each position, so that elements that change places change the sum."""
    mixed = positions * 0x1E3779B97F4A7C15
    mixed ^= mixed >> 29
    mixed *= 0x3F58476D1CE4E5B9
    mixed ^= mixed >> 32
    return mixed | 1

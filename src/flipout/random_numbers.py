"""Random numbers without state: a pure function of (seed, step, tensor, element), in plain torch operations.

The numbers are computed, not drawn. There is no generator to save, a resumed run continues bit for bit, and every
data-parallel rank computes the same noise without communication. Torch's own random state is never touched.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

from .kernels import latent_loops
from .kernels.step_loops import in_c
from .views import Positions


def normal(
    where: Positions | torch.Size, *, seed: int, step: int, tensor: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Standard normal float32 numbers for a whole tensor, given by its shape, or for those of its elements here."""
    where = _positions(where)
    return normal_at(*rows_of(where, device), *key("normal", seed, step, tensor)).view(where.held)


def uniform(
    where: Positions | torch.Size, *, seed: int, step: int, tensor: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Float32 numbers in (0, 1], multiples of 2^-24; `where` is as for `normal`."""
    where = _positions(where)
    return uniform_at(*rows_of(where, device), *key("uniform", seed, step, tensor)).view(where.held)


@in_c(latent_loops.uniform_at)
def uniform_at(starts: Tensor, offsets: Tensor, factor: int | Tensor, addend: int | Tensor) -> Tensor:
    """Uniform numbers from one hash each. An element's number is the sum of the start of its row and its offset."""
    return (_shift(_hash(starts, offsets, factor, addend), 8) + 1).float().mul_(2.0**-24)


@in_c(latent_loops.normal_at)
def normal_at(starts: Tensor, offsets: Tensor, factor: int | Tensor, addend: int | Tensor) -> Tensor:
    """Normal numbers from one hash each, without a logarithm, a root or a sine.

    An element's number is the sum of the start of its row and its offset in the row.

    The 32 bits of a hash are cut into four uniform numbers, one of 14 bits and three of 6. Their sum is nearly normal,
    and an odd polynomial of degree 13 corrects the rest. The Kolmogorov distance to the normal distribution is 8e-5,
    the variance and the kurtosis are correct to 1e-5, and the tails reach 5.4.

    (Box-Muller produces pairs for two places of a tensor. A compiler makes two loops of that, and each of its four
    functions costs more than all of this.)
    """
    bits = _hash(starts, offsets, factor, addend)
    total = (bits >> 18).add_((bits >> 4).bitwise_and_(0x3F00))
    total.add_((bits << 2).bitwise_and_(0x3F00)).add_((bits << 8).bitwise_and_(0x3F00))
    x = total.float().sub_(24191.5).mul_(2.0**-15)
    square = x * x
    y = (square * 31.699367).sub_(76.259804)
    y.mul_(square).add_(71.387824)
    y.mul_(square).sub_(30.867949)
    y.mul_(square).add_(6.4963187)
    y.mul_(square).sub_(0.060223565)
    y.mul_(square).add_(3.3434541)
    return y.mul_(x)


def _positions(where: Positions | torch.Size) -> Positions:
    return where if isinstance(where, Positions) else Positions.all_of(where)


def rows_of(where: Positions, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """The starts of the rows of a tensor as a column, and the offsets within a row.

    (Loading a row of numbers is faster than computing the number of each element.)
    """
    return where.starts(device).unsqueeze(1), where.offsets(device)


def key(use: str, seed: int, step: int, tensor: int) -> tuple[int, int]:
    """An odd factor and an addend: the arithmetic sequence of integers that the elements of a tensor hash."""
    digest = hashlib.blake2b(f"{use} {seed} {step} {tensor}".encode(), digest_size=8).digest()
    factor, addend = struct.unpack("<2i", digest)
    return factor | 1, addend


def _hash(starts: Tensor, offsets: Tensor, factor: int | Tensor, addend: int | Tensor) -> Tensor:
    """Hash 32-bit integers, one to one; every input bit flips every output bit with a probability near one half.

    The multiply and shift constants are those of Wellons' `lowbias32`.
    """
    x = (starts * factor + addend) + offsets * factor
    x = _fold(x, 16).mul_(0x7FEB352D)
    x = _fold(x, 15).mul_(0x846CA68B - (1 << 32))
    return _fold(x, 16)


def _fold(x: Tensor, by: int) -> Tensor:
    """`x ^ x >> by`."""
    return _shift(x, by).bitwise_xor_(x)


def _shift(x: Tensor, by: int) -> Tensor:
    """`x >> by` for unsigned integers; torch's int32 shift repeats the sign bit."""
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)

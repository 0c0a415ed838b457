"""Random numbers without state: a pure function of (seed, step, tensor, element), in plain torch operations.

Nothing is drawn, everything is computed: there is no generator to save, a resumed run continues bit for bit, and every
data-parallel rank has the same noise without a word exchanged. Torch's own random state is never touched.
"""

from __future__ import annotations

import hashlib
import math
import struct
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from .progress import DivergenceWarning


def normal(shape: torch.Size, *, seed: int, step: int, tensor: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal float32 numbers."""
    return normal_at(*_rows(shape, device), *key("normal", seed, step, tensor)).view(shape)


def uniform(shape: torch.Size, *, seed: int, step: int, tensor: int, device: torch.device | str = "cpu") -> Tensor:
    """Float32 numbers in (0, 1], multiples of 2^-24."""
    bits = _hash(*_rows(shape, device), *key("uniform", seed, step, tensor))
    return (_shift(bits, 8) + 1).float().mul_(2.0**-24).view(shape)


def normal_at(rows: Tensor, offsets: Tensor, factor: int, addend: int) -> Tensor:
    """Normal numbers from one hash each, without a logarithm, a root or a sine.

    The 32 bits of a hash are cut into four uniform numbers, one of 14 bits and three of 6, whose sum is nearly normal
    already: an odd polynomial of degree 13 makes up the rest. Its distribution is within 8e-5 of the normal one
    everywhere (Kolmogorov's distance), its variance and kurtosis are right to 1e-5, and its tails reach 5.4.

    (Box and Muller's pairs belong to two places of a tensor, so that a compiler makes two loops of them, and each of
    their four functions costs more than all of this.)
    """
    bits = _hash(rows, offsets, factor, addend)
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


def _rows(shape: torch.Size, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """A column that numbers the rows of a tensor, each all that one index of its first dimension holds, and a row that
    numbers their elements. (A row is loaded, where the number of each element would have to be made.)"""
    rows = torch.arange(shape[0] if len(shape) > 1 else 1, dtype=torch.int32, device=device)
    width = shape.numel() // max(1, len(rows))
    return rows.unsqueeze(1), torch.arange(width, dtype=torch.int32, device=device)


def key(use: str, seed: int, step: int, tensor: int) -> tuple[int, int]:
    """An odd factor and an addend: which arithmetic sequence of integers the elements of a tensor hash."""
    digest = hashlib.blake2b(f"{use} {seed} {step} {tensor}".encode(), digest_size=8).digest()
    factor, addend = struct.unpack("<2i", digest)
    return factor | 1, addend


def _hash(rows: Tensor, offsets: Tensor, factor: int, addend: int) -> Tensor:
    """A bijection of 32-bit integers in which every input bit turns over every output bit with a chance near one half
    (the multiply and shift constants are Wellons' `lowbias32`)."""
    x = (rows * offsets.numel() * factor + addend) + offsets * factor
    x = _fold(x, 16).mul_(0x7FEB352D)
    x = _fold(x, 15).mul_(0x846CA68B - (1 << 32))
    return _fold(x, 16)


def _fold(x: Tensor, by: int) -> Tensor:
    """`x ^ x >> by`."""
    return _shift(x, by).bitwise_xor_(x)


def _shift(x: Tensor, by: int) -> Tensor:
    """`x >> by` as if unsigned: torch's int32 shift repeats the sign."""
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)


@dataclass(frozen=True)
class GradientNoise:
    """Equation 3: `g <- g + scale * sigma * eps`, `eps ~ N(0, 1)`, for each weight tensor, zero where pruned.

    `relative_to="gradient"` takes `sigma = ||g|| / sqrt(d)` of the masked gradient, which is what the paper's results
    come from. `relative_to="weight"` takes `sigma = ||theta|| / sqrt(d)`, as Equation 3c prints it. `d` counts pruned
    weights too, so the noise anneals by itself as pruning proceeds.
    """

    scale: float = 1.0
    relative_to: Literal["gradient", "weight"] = "gradient"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise ValueError(f"noise scale is {self.scale}; give a finite number of at least 0 (0: no noise)")
        if self.relative_to not in ("gradient", "weight"):
            raise ValueError(f"relative_to is {self.relative_to!r}; give 'gradient' or 'weight'")

    def growth(self, learning_rate: float, momentum: float, weight_decay: float, steps: int = 200) -> float:
        """How fast noise relative to the weights makes them grow under SGD: what `log ||theta||` gains in a step.

        The loss aside, SGD is `v <- momentum * v + decay * theta + scale * ||theta|| / sqrt(d) * eps` and
        `theta <- theta - lr * v`, so the second moments of theta and v follow a linear recursion, run here.
        """
        square, product, velocity, gained = 1.0, 0.0, 0.0, 0.0  # of E[theta^2], E[theta v], E[v^2]
        for _ in range(steps):
            pull = momentum * product + weight_decay * square
            velocity = momentum * (momentum * velocity + weight_decay * product) + weight_decay * pull
            velocity += self.scale**2 * square
            square, product = (
                square - 2 * learning_rate * pull + learning_rate**2 * velocity,
                pull - learning_rate * velocity,
            )
            gained += math.log(square) / 2
            square, product, velocity = 1.0, product / square, velocity / square
        return gained / steps


def as_noise(noise: GradientNoise | float | None, seed: int) -> GradientNoise | None:
    """Noise as a user may give it: a scale, the thing itself, or none."""
    if isinstance(noise, Real):
        return GradientNoise(float(noise), seed=seed)
    if noise is not None and not isinstance(noise, GradientNoise):
        raise TypeError(f"noise is {noise!r}; give a number, or a flipout.GradientNoise")
    return noise


def warn_of_divergence(noise: GradientNoise, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Warns of noise relative to the weights that would make them grow tenfold or more during training."""
    if noise.relative_to == "gradient" or not noise.scale or not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        rate, momentum = float(group["lr"]), float(group["momentum"])
        growth = noise.growth(rate, momentum, float(group["weight_decay"]))
        if growth * steps > math.log(10):
            warnings.warn(
                f"noise of scale {noise.scale} relative to the weights (Eq. 3 as printed), at a learning rate of "
                f"{rate} and momentum {momentum}, makes the weights grow by a factor of about {math.exp(growth):.3g} "
                "at every step: training is likely to end at chance. Use relative_to='gradient', a smaller scale, or "
                "a smaller learning rate",
                DivergenceWarning,
                stacklevel=4,
            )
            return

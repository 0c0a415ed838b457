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
    """Standard normal float32 numbers, by Box and Muller: each pair of uniforms gives two of them.

    The element `i` of a tensor of `n` is `radius(j) * cos(angle(j))` in its first half and
    `radius(j) * sin(angle(j))` in its second, with `j = i mod ceil(n/2)`.
    """
    total = shape.numel()
    elements = torch.arange((total + 1) // 2, dtype=torch.int32, device=device)
    start, first, second = _keys("normal", seed, step, tensor)
    mixed = _mix(elements + start)
    radius = (_unit(_mix(mixed ^ first)).log_() * -2).sqrt_()
    angle = _unit(_mix(mixed ^ second)) * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:total].view(shape)


def uniform(shape: torch.Size, *, seed: int, step: int, tensor: int, device: torch.device | str = "cpu") -> Tensor:
    """Float32 numbers in (0, 1], multiples of 2^-24."""
    elements = torch.arange(shape.numel(), dtype=torch.int32, device=device)
    start, first, _ = _keys("uniform", seed, step, tensor)
    return _unit(_mix(_mix(elements + start) ^ first)).view(shape)


def _keys(use: str, seed: int, step: int, tensor: int) -> tuple[int, int, int]:
    """Three 32-bit keys. An element goes through two rounds of mixing with a key each: with one round alone, the
    numbers of one step would be those of another, shifted."""
    digest = hashlib.blake2b(f"{use} {seed} {step} {tensor}".encode(), digest_size=12).digest()
    return struct.unpack("<3i", digest)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every input bit turns over every output bit with a chance near one half
    (the multiply and shift constants are Wellons' `lowbias32`)."""
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = (x ^ _shift(x, 15)) * (0x846CA68B - (1 << 32))
    return x ^ _shift(x, 16)


def _shift(x: Tensor, by: int) -> Tensor:
    """`x >> by` as if unsigned: torch's int32 shift repeats the sign."""
    return x >> by & ((1 << (32 - by)) - 1)


def _unit(bits: Tensor) -> Tensor:
    """The upper 24 bits as a number in (0, 1]: never 0, so that its logarithm is finite."""
    return (_shift(bits, 8) + 1).float() * 2.0**-24


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

    def sigma(self, weight: Tensor, grad: Tensor) -> Tensor:
        """The deviation of the noise; the gradient is already masked."""
        relative = grad if self.relative_to == "gradient" else weight
        wide = torch.float64 if relative.dtype == torch.float64 else torch.float32  # a half's square would overflow
        norm: Tensor = torch.linalg.vector_norm(relative, dtype=wide)
        return norm / math.sqrt(max(1, relative.numel()))

    def sample(self, weight: Tensor, grad: Tensor, *, step: int, tensor: int) -> Tensor:
        """`scale * sigma * eps` for one weight tensor at one step."""
        noise = normal(weight.shape, seed=self.seed, step=step, tensor=tensor, device=weight.device)
        return noise * (self.scale * self.sigma(weight, grad))

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

"""Gradient noise (Eq. 3): its settings, its kernel, and a warning for noise that cannot train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from ..kernels import step_loops
from ..kernels.step_loops import in_c
from ..numerics import masked, wide
from ..problems import DivergenceWarning, warn
from ..random_numbers import key, normal_at
from .compiler import compiled
from .groups import Alone, Gathered, Group
from .kernels import Kernels


@dataclass(frozen=True)
class GradientNoise:
    """Gradient noise (Eq. 3): `g <- g + scale * sigma * eps`, `eps ~ N(0, 1)`, per weight tensor, zero where pruned.

    `relative_to="gradient"` uses `sigma = ||g|| / sqrt(d)` of the masked gradient, which produced the paper's results.
    `relative_to="weight"` uses `sigma = ||theta|| / sqrt(d)`, as Equation 3c prints it. `d` counts pruned weights too,
    so the noise anneals by itself as pruning proceeds.

        >>> noise = flipout.GradientNoise(0.5, seed=1)
        >>> pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=steps, noise=noise)

    Args:
        scale: the paper's lambda; 0 is no noise.
        relative_to: what sigma is relative to.
        seed: the seed of the noise, independent of torch's.
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
        """The growth of `log ||theta||` per step of SGD that noise relative to the weights causes.

        Without the loss, SGD is `v <- momentum * v + decay * theta + scale * ||theta|| / sqrt(d) * eps` and
        `theta <- theta - lr * v`. The second moments of theta and v then follow a linear recursion, which is run here.
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
    """Gradient noise from what a user may pass: a scale, a `GradientNoise`, or None."""
    if isinstance(noise, Real):
        return GradientNoise(float(noise), seed=seed)
    if noise is not None and not isinstance(noise, GradientNoise):
        raise TypeError(f"noise is {noise!r}; give a number, or a flipout.GradientNoise")
    return noise


def warn_of_divergence(noise: GradientNoise | None, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Warn about noise relative to the weights that would make them grow tenfold or more during training."""
    if noise is None or noise.relative_to == "gradient" or not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        rate, momentum = float(group["lr"]), float(group["momentum"])
        growth = noise.growth(rate, momentum, float(group["weight_decay"]))
        if growth * steps > math.log(10):
            warn(
                f"noise of scale {noise.scale} relative to the weights (Eq. 3 as printed), at a learning rate of "
                f"{rate} and momentum {momentum}, makes the weights grow by a factor of about {math.exp(growth):.3g} "
                "at every step: training is likely to end at chance. Use relative_to='gradient', a smaller scale, or "
                "a smaller learning rate",
                DivergenceWarning,
            )
            return


def add_noise(
    noise: GradientNoise,
    kernels: Kernels,
    group: Group,
    grads: Tensor,
    step: int,
    scale: Tensor | float,
    *,
    hidden: bool,
) -> None:
    """Add noise to the gradients of a group, and zero them where weights are pruned: `g <- m * (g + lambda sigma eps)`.

    With `hidden`, pruned weights keep their gradient, without noise. `scale` is the factor that a gradient scaler has
    multiplied the gradients with.
    """
    size = kernels.number(noise.scale, grads.device)
    if noise.relative_to == "weight":  # noise relative to the gradient is scaled already
        size = size * (scale.to(grads.device) if isinstance(scale, Tensor) else scale)
        group.load()
    starts, offsets = group.numbering
    keys = [key("normal", noise.seed, step, weight.number) for weight in group.weights]
    pruned = "hidden" if hidden else "masked"
    plain = offsets.ndim == 1 and starts.numel() == len(grads)  # a number for each row, and one for each column
    loop = kernels.loop(perturb_by, grads, group.mask, starts, offsets) if plain else None
    whole = isinstance(group, Alone) and group.weights[0].view.positions.whole
    if loop is None and whole and kernels.compiles(perturb, group):
        run = compiled(perturb, *group.kind, noise.relative_to, pruned)
        run(group.values, grads, group.mask, starts, offsets, *keys[0], size, noise.relative_to, pruned)
        return
    sigma: Tensor | float
    if loop is not None and whole:  # without operations on small tensors, which take as long
        relative = group.values if noise.relative_to == "weight" else grads
        sigma = size.item() * math.sqrt(step_loops.sum_of_squares(relative, group.mask) / max(1, group.weights[0].size))
    else:
        sigma = group.spread(size * deviations(noise, kernels, group, grads))
    factor, addend = keys[0] if isinstance(group, Alone) else _spread_keys(group, keys)
    if loop is not None:
        loop(grads, group.mask, starts, offsets, factor, addend, sigma, pruned)
    elif isinstance(group, Gathered):
        run = compiled(perturb_by, *group.kind, pruned) if kernels.compiles(perturb_by, group) else perturb_by
        run(grads, group.mask, starts, offsets, factor, addend, sigma, pruned)
    else:
        for block in group.blocks:
            perturb_by(grads[block], group.mask[block], starts[block], offsets, factor, addend, sigma, pruned)


def _spread_keys(group: Group, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """The factor and the addend of the weight that each row belongs to."""
    factors, addends = torch.tensor(keys, dtype=torch.int32, device="cpu").to(group.values.device).unbind(1)
    return group.spread(factors), group.spread(addends)


def deviations(noise: GradientNoise, kernels: Kernels, group: Group, grads: Tensor) -> Tensor:
    """`sigma = ||m * g|| / sqrt(d)`, or `||theta|| / sqrt(d)` (Eq. 3c), of each weight, over all ranks that hold some.

    `d` counts all elements of the original tensor. What is not here and on no other rank is 0.
    """
    relative, view = group.values if noise.relative_to == "weight" else grads, group.weights[0].view
    if view.key is not None:  # a shard: in float64, because ranks add up their sums in another order than one would
        total = view.sum(masked(wide(relative), group.mask).square().double().sum()).view(1)
        return (total / view.size).sqrt().to(wide(relative).dtype)
    if (loop := kernels.loop(squares_of_rows, relative, group.mask)) is not None:
        squares = group.sums_of_rows(loop(relative, group.mask))
    elif isinstance(group, Alone):
        squares = masked(wide(relative), group.mask).square().sum().view(1)
    elif kernels.compiles(squares_of_rows, group):
        squares = group.sums_of_rows(compiled(squares_of_rows, *group.kind)(relative, group.mask))
    else:
        rows = [squares_of_rows(relative[block], group.mask[block]) for block in group.blocks]
        squares = group.sums_of_rows(torch.cat(rows))
    return (squares / group.sizes.to(squares.dtype)).sqrt()


@in_c(step_loops.squares_of_rows)
def squares_of_rows(relative: Tensor, mask: Tensor) -> Tensor:
    """The sum of the squares of what is kept in each row."""
    return masked(wide(relative), mask).square().sum(1)


def perturb(
    weight: Tensor,
    grad: Tensor,
    mask: Tensor,
    starts: Tensor,
    offsets: Tensor,
    factor: int,
    addend: int,
    scale: Tensor,
    relative_to: str,
    pruned: str,
) -> None:
    """Noise relative to a whole tensor, in one compiled loop for its deviation and one for the rest."""
    relative = masked(wide(weight if relative_to == "weight" else grad), mask)
    sigma = scale * (relative.square().sum() / relative.numel()).sqrt()
    perturb_by(grad, mask, starts, offsets, factor, addend, sigma, pruned)


@in_c(step_loops.perturb_by)
def perturb_by(
    grad: Tensor,
    mask: Tensor,
    starts: Tensor,
    offsets: Tensor,
    factor: int | Tensor,
    addend: int | Tensor,
    sigma: Tensor | float,
    pruned: str,
) -> None:
    """Noise of a known deviation. `starts` and `offsets` number the elements: see `Positions`."""
    noise = normal_at(starts, offsets, factor, addend)
    noise.mul_(sigma)
    grad.copy_(masked(noise, mask) + wide(grad) if pruned == "hidden" else masked(noise + wide(grad), mask))

"""The work around each optimizer step, for one weight tensor: `perturb` before it and `count_flips` after it.

They depend on their arguments alone, are written in plain torch operations, and run as they stand or under
`torch.compile`, which makes two loops of the one and one loop of the other. Bytes are turned into floats before
anything is done with them, for neither torch nor its compiler is quick with booleans and small integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .criteria import flip_saliency
from .noise import normal_at

LIMIT = 16_383
"""Flips are counted up to this number. (Below it stands as a literal: a compiler takes names for numbers that vary.)"""

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of as many bytes as a float."""


def perturb(
    weight: Tensor,
    grad: Tensor,
    mask: Tensor,
    offsets: Tensor,
    factor: int,
    addend: int,
    scale: Tensor,
    relative_to: str,
) -> None:
    """Adds noise to a gradient, and zeroes it where weights are pruned: `g <- m * (g + scale * sigma * eps)`."""
    add_noise(grad, mask, offsets, factor, addend, scale * deviation(weight, grad, mask, relative_to))


def deviation(weight: Tensor, grad: Tensor, mask: Tensor, relative_to: str) -> Tensor:
    """`sigma = ||m * g|| / sqrt(d)`, or `||theta|| / sqrt(d)` (Eq. 3c)."""
    relative = wide(weight) if relative_to == "weight" else masked(wide(grad), mask)
    return (relative.square().sum() / relative.numel()).sqrt()


def add_noise(
    grad: Tensor, mask: Tensor, offsets: Tensor, factor: int, addend: int, sigma: Tensor, first: int = 0
) -> None:
    """The same for some rows of a gradient, from the first on; the mask is of bytes."""
    rows = torch.arange(first, first + grad.shape[0], dtype=torch.int32, device=grad.device)
    noise = normal_at(rows.view(-1, *[1] * offsets.ndim), offsets, factor, addend)
    grad.copy_(masked(noise.mul_(sigma) + wide(grad), mask))


def count_flips(weight: Tensor, mask: Tensor, low: Tensor, high: Tensor) -> None:
    """Counts the signs that a step has changed (Eq. 1b), and zeroes the weights that are pruned.

    A count and the sign that it goes by share two bytes: `low` is the lower byte of the count, `high` its upper six
    bits below `sgn(theta) + 1`.
    """
    sign, high_bits = wide(weight).sign(), high.float()
    noted = (high_bits * (1 / 64)).floor_()
    changed = (noted - sign).sub_(1).abs_().clamp_max_(1).mul_(mask.float())
    count = (high_bits - noted * 64).mul_(256).add_(low.float()).add_(changed).clamp_max_(16_383)
    upper = (count * (1 / 256)).floor_()
    low.copy_(count - upper * 256)
    high.copy_(sign.add_(1).mul_(64).add_(upper))
    zero(weight, mask)


def zero(weight: Tensor, mask: Tensor) -> None:
    """Zeroes the weights that are pruned."""
    weight.copy_(masked(weight, mask))


def note_signs(weight: Tensor, high: Tensor) -> None:
    """Notes the signs to compare with after the next step."""
    high.bitwise_and_(63).add_((weight.sign() + 1).to(torch.uint8) << 6)


def read_flips(low: Tensor, high: Tensor) -> Tensor:
    """The counts as integers."""
    return (high & 63).int() * 256 + low


def saliency(weight: Tensor, low: Tensor, high: Tensor, p: str) -> Tensor:
    """FlipOut's criterion, from its packed counts. (`p` is text, for a compiler takes numbers for ones that vary.)"""
    bits = high.float()
    flips = (bits - (bits * (1 / 64)).floor() * 64) * 256 + low.float()
    return flip_saliency(wide(weight), flips, p=float(p))


def masked(tensor: Tensor, mask: Tensor) -> Tensor:
    """`m * x` with a mask of bytes, but 0 where the mask is, whatever is there, NaN included."""
    if torch.compiler.is_compiling():
        return torch.where(mask.float() > 0, tensor, 0)
    # Uncompiled, choosing takes several times as long as computing: 0.0 is all bits clear.
    integer = INTEGERS[tensor.element_size()]
    return (tensor.view(integer) & mask.to(integer).neg_()).view(tensor.dtype)


def wide(tensor: Tensor) -> Tensor:
    """In float32 at least: the square of a half-precision number overflows, and its power vanishes."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()

"""What a weight is worth: lowest is pruned first. One expression each.

A criterion is any function that gives a score for each weight. Its arguments name the statistics it needs
(`statistics.py` lists them); only those are tracked. Arguments with a default are settings.
"""

from __future__ import annotations

from torch import Tensor


def flip_saliency(weight: Tensor, flips: Tensor, *, p: float = 2.0) -> Tensor:
    """FlipOut (Eq. 1): `|theta|^p / (flips + 1)`.

    The paper divides by `flips`, which makes a weight that never flipped immortal; hence the `+ 1`.
    """
    weight = weight.double() if p > 4 else weight  # high powers of small weights would vanish
    return weight.abs().pow(p) / (flips + 1)


def magnitude(weight: Tensor) -> Tensor:
    """`|theta|`: global magnitude, and Han et al. (2015) layer by layer."""
    return weight.abs()


def random(uniform: Tensor) -> Tensor:
    """Any weight is as good as any other."""
    return uniform


def sensitivity(weight: Tensor, grad: Tensor) -> Tensor:
    """SNIP (Lee et al., 2019): `|theta * dL/dtheta|`, what the loss would change if the weight went."""
    return (weight * grad).abs()


def magnitude_uncertainty(weight: Tensor, std: Tensor, *, lambda_: float = 0.1) -> Tensor:
    """M&U (Ko et al., 2019): `|theta| / (lambda + std(theta))`; the Wald test at `lambda = 0`."""
    return weight.abs() / (lambda_ + std)

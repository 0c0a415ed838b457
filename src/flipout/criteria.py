"""Criteria: what a weight is worth. The lowest scores are pruned first. One expression each.

A criterion is any function that returns a score for each weight. Its arguments name the statistics it needs
(`flipout.statistics` lists them), and only those are tracked. Arguments with a default value are settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

Criterion = Callable[..., Tensor]
Function = TypeVar("Function", bound=Callable[..., Any])


def elementwise(criterion: Function) -> Function:
    """Declare that each score depends on its own element alone, so that the criterion can be compiled into one loop."""
    criterion.elementwise = True  # type: ignore[attr-defined]
    return criterion


def with_statistics(**statistics: Callable[..., Any]) -> Callable[[Function], Function]:
    """Declare the statistics that a criterion brings along, by the argument names it uses.

    Examples:
        >>> @flipout.criteria.with_statistics(recent_flips=partial(flipout.statistics.Flips, horizon=100))
        ... def steadiness(weight, recent_flips):
        ...     return weight.abs() / (recent_flips + 1)
    """

    def declare(criterion: Function) -> Function:
        criterion.statistics = statistics  # type: ignore[attr-defined]
        return criterion

    return declare


def is_elementwise(criterion: Criterion) -> bool:
    """Whether a criterion is declared elementwise."""
    return bool(_declared(criterion, "elementwise", False))


def statistics_of(criterion: Criterion) -> Mapping[str, Any]:
    """The statistics that a criterion brings along."""
    statistics: Mapping[str, Any] = _declared(criterion, "statistics", {})
    return statistics


def _declared(criterion: Criterion, name: str, default: Any) -> Any:
    """What is declared for a criterion, or for the function in its `partial`."""
    while not hasattr(criterion, name) and isinstance(criterion, partial):
        criterion = criterion.func
    return getattr(criterion, name, default)


@elementwise
def flip_saliency(weight: Tensor, flips: Tensor, *, p: float = 2.0) -> Tensor:
    """FlipOut (Eq. 1): `|theta|^p / (flips + 1)`.

    The paper divides by `flips`, so a weight that never flipped can never be pruned; hence the `+ 1`.

    High powers of small weights underflow. For `p > 4` the value is the logarithm of the saliency divided by `p`, in
    float64, which ranks the weights in the same order: `log|theta| - log(flips + 1) / p`, and -1000 for a weight of 0.
    """
    if p > 4:
        magnitudes = weight.double().abs()
        logarithm = magnitudes.log() - (flips + 1).double().log() / p
        return torch.where(magnitudes > 0, logarithm, -1000.0)  # the logarithm of the smallest float64 is -744
    return weight.abs().pow(p) / (flips + 1)


@elementwise
def magnitude(weight: Tensor) -> Tensor:
    """`|theta|`: global magnitude, and Han et al. (2015) layer by layer."""
    return weight.abs()


@elementwise
def relative_magnitude(weight: Tensor, fan_in: Tensor) -> Tensor:
    """`|theta| * sqrt(fan_in)`: magnitude relative to the scale that layers are initialized with."""
    return weight.abs() * fan_in.sqrt()


def lamp(weight: Tensor) -> Tensor:
    """LAMP (Lee et al., 2021): `theta^2` over the sum of `theta^2` of all weights of the layer that are not smaller.

    Of equal weights, the earlier one counts as the smaller. The largest weight of each layer has the score 1, so a
    layer loses its last weight only after all others.

    The sums are over integers, in units of at most `n / 2^61` of the largest square for `n` weights. Such sums do not
    depend on the order of the additions, so every call and every device gives the same scores.
    """
    squares = weight.flatten().double().square()
    if not len(squares):
        return weight.double()
    ascending, order = squares.sort(stable=True)
    unit = (ascending[-1] * 2.0 ** (len(squares).bit_length() - 62)).clamp_min(torch.finfo(torch.float64).tiny)
    not_smaller = (ascending / unit).round_().long().flip(0).cumsum(0).flip(0).clamp_min_(1)
    return torch.empty_like(squares).scatter_(0, order, ascending / unit / not_smaller).view_as(weight)


@elementwise
def random(uniform: Tensor) -> Tensor:
    """A random score."""
    return uniform


@elementwise
def sensitivity(weight: Tensor, grad: Tensor) -> Tensor:
    """SNIP (Lee et al., 2019): `|theta * dL/dtheta|`, the change of the loss if the weight is removed."""
    return (weight * grad).abs()


@elementwise
def magnitude_uncertainty(weight: Tensor, std: Tensor, *, lambda_: float = 0.1) -> Tensor:
    """M&U (Ko et al., 2019): `|theta| / (lambda + std(theta))`; the Wald test at `lambda = 0`."""
    return weight.abs() / (lambda_ + std)


@elementwise
def fisher_saliency(weight: Tensor, fisher: Tensor, *, power: float = 1.0) -> Tensor:
    """Optimal Brain Damage (LeCun et al., 1990): `theta^2 * fisher^power`, `fisher` the mean of squared gradients.

    With `power = 1` it is twice the change of the loss if the weight is removed, in the diagonal approximation with the
    empirical Fisher as the Hessian. With `power = 1/2` gradients count less.
    """
    return weight.square() * fisher.pow(power)


@elementwise
def surgeon_saliency(weight: Tensor, inverse_fisher: Tensor) -> Tensor:
    """Optimal Brain Surgeon (Hassibi and Stork, 1993): `theta^2 / (2 [F^-1]_qq)`, the change of the loss if the weight
    is removed and the others make up for it."""
    return weight.square() / (2 * inverse_fisher)


@elementwise
def wanda(weight: Tensor, input_norm: Tensor) -> Tensor:
    """Wanda (Sun et al., 2024): `|theta| * norm(x)`, the change of an output if the weight is removed, for
    `flipout.prune`."""
    return weight.abs() * input_norm

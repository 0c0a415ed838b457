"""Whether a shrink pays: decided from the masks and the plan alone, so that every run decides the same."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

LEAST_SAVED = 0.15
"""The share of the multiply-adds of a step that a shrink must save."""

REPAID = 10
"""The number of steps, of the network as it is, that a shrink must save until the end of training. Tracing a network,
checking the smaller one and moving the weights takes about as long as a few steps."""


def is_repaid(left: float, steps: int) -> bool:
    """Whether a shrink pays that leaves a share of the multiply-adds, with so many steps to go."""
    return 1 - left >= LEAST_SAVED and (1 - left) * steps >= REPAID


def estimate(masks: Mapping[str, Tensor]) -> float:
    """Estimate the share of multiply-adds that is left, before the network was traced: inputs that no weight reads.

    It does not know which layer reads which, and takes the second dimension of a weight as its inputs.
    """
    read = total = 0.0
    for mask in masks.values():
        if mask.ndim > 1 and mask.numel():
            total += mask.numel()
            read += mask.numel() * float(mask.transpose(0, 1).flatten(1).any(1).float().mean())
    return read / total if total else 1.0

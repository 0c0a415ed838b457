"""Whether a shrink pays: decided from the masks and the plan alone, so that every run decides the same."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

LEAST_SAVED = 0.05
"""The share of the multiply-adds of a step that a shrink must save. It bounds the number of shrinks."""

FIXED_COST, COST_PER_WEIGHT = 5e9, 100.0
"""What a shrink costs, in multiply-adds of a forward pass: tracing the network and trying the smaller one, and moving
all weights. (Measured: 0.1 s for a perceptron, 1 s for VGG19 with 20 M weights, at 20 G multiply-adds a second of which
a training step takes three times as many as a forward pass.)"""

USUAL_BATCH = 32
"""The batch size, before the network was traced with an example."""


def is_repaid(saved: float, before: float, weights: int, examples: float) -> bool:
    """Whether a shrink pays.

    Args:
        saved: the multiply-adds for one example that it saves.
        before: those of the network as it is.
        weights: the number of weights of the original network.
        examples: how many examples the network is still trained with.
    """
    return saved >= LEAST_SAVED * before and saved * examples >= FIXED_COST + COST_PER_WEIGHT * weights


def estimate(masks: Mapping[str, Tensor]) -> tuple[float, float]:
    """Estimate the multiply-adds that inputs cost which no weight reads, and all of them, before the network is traced.

    It does not know how often a weight is used, nor which layer reads which, and takes the second dimension of a weight
    as its inputs.
    """
    saved = total = 0.0
    for mask in masks.values():
        if mask.ndim > 1 and mask.numel():
            total += mask.numel()
            saved += mask.numel() * float((~mask.transpose(0, 1).flatten(1).any(1)).float().mean())
    return saved, total

"""Verify that an exported file computes the same as the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...graph.comparison import coarsest_epsilon, describe_difference, inputs_like, largest_difference

OUTPUT_TOLERANCE = 1e-4
"""The largest difference that is accepted, relative to the size of the outputs."""
ROUNDING_STEPS = 10
"""In half precision, whose rounding is coarser than the tolerance, this many steps of rounding are accepted."""
BATCH_SIZES = (1, 3)


def verify_outputs(
    network: nn.Module, exported: Callable[..., Any], example: tuple[Tensor, ...], runtime: str
) -> float:
    """Compare a network and its exported form on random inputs of two batch sizes; return the largest difference.

    Raise a ValueError, which names the runtime, if outputs differ by more than rounding.
    """
    largest = 0.0
    for batch in BATCH_SIZES:
        inputs = inputs_like(example, batch)
        expected, found = network(*inputs), exported(*inputs)
        tolerance = max(OUTPUT_TOLERANCE, ROUNDING_STEPS * coarsest_epsilon(expected))
        if difference := describe_difference(expected, found, tolerance):
            raise ValueError(
                f"the outputs of {runtime} differ from those of {type(network).__name__} for a batch of {batch} "
                f"({difference}); no file was written"
            )
        largest = max(largest, largest_difference(expected, found))
    return largest

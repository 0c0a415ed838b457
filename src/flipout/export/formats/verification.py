"""Whether a file that was written computes what the network does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...graph.comparison import distance, inputs_like, precision, unlike

TOLERANCE = 1e-4
ROUNDINGS = 10
"""Of half precision, which is coarser than the tolerance."""
BATCHES = (1, 3)


def batch_axes(network: nn.Module, inputs: int) -> Any:
    """For torch's exporter: the first axis of every input may be of any size. Those of `*arguments` it wants as one."""
    axes = tuple({0: torch.export.Dim.DYNAMIC} for _ in range(inputs))
    kinds = [parameter.kind for parameter in inspect.signature(network.forward).parameters.values()]
    return (axes,) if kinds[:1] == [inspect.Parameter.VAR_POSITIONAL] else axes


def largest_difference(network: nn.Module, other: Callable[..., Any], example: tuple[Tensor, ...], who: str) -> float:
    """Between the outputs of a network and another form of it, on random inputs in two batch sizes.

    More than rounding is an error, which says who computed it.
    """
    worst = 0.0
    for batch in BATCHES:
        inputs = inputs_like(example, batch)
        ours, theirs = network(*inputs), other(*inputs)
        if difference := unlike(ours, theirs, max(TOLERANCE, ROUNDINGS * precision(ours))):
            raise ValueError(
                f"{who} gives other outputs than {type(network).__name__} for a batch of {batch}: they differ "
                f"({difference}); no file was written"
            )
        worst = max(worst, distance(ours, theirs))
    return worst

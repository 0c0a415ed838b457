"""Whether a file that was written computes what the network does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

TOLERANCE = 1e-4
"""Of the largest output, or of one if that is larger."""
BATCHES = (1, 3)


def inputs_like(example: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Inputs of another batch size: random numbers, or rows of the example where it holds no real numbers."""
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn(batch, *tensor.shape[1:], generator=generator).to(tensor.dtype)
        return tensor.cpu()[torch.randint(len(tensor), (batch,), generator=generator)]

    return tuple(like(tensor) for tensor in example)


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
        for ours, theirs in zip(pytree.tree_leaves(network(*inputs)), pytree.tree_leaves(other(*inputs)), strict=True):
            between = ours.double() - theirs.double()
            difference, size = (float(each.abs().max()) if ours.numel() else 0.0 for each in (between, ours.double()))
            if not difference <= TOLERANCE * max(1.0, size):
                raise ValueError(
                    f"{who} gives other outputs than {type(network).__name__} for a batch of {batch}: they differ by "
                    f"{difference:.3g}; no file was written"
                )
            worst = max(worst, difference)
    return worst

"""What a saved state says about a shrunk network, as one string: the channels that are left, and the shrinks so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..views.cut import Indices


class Shrink(NamedTuple):
    """The record of a shrink.

    Args:
        step: the optimizer step that it came after.
        weights: the prunable weights that the network computes with from then on.
        share: the share of the multiply-adds of the original network that is left.
    """

    step: int
    weights: int
    share: float


@dataclass(frozen=True)
class ShrunkState:
    """What is saved of a shrunk network.

    Args:
        indices: the indices that are left of each tensor that is cut; empty if the network is whole.
        shrinks: the shrinks so far.
        example: the shape and the type of each input that the network was traced with; none before the first shrink.
        batch: the number of examples in a batch.
    """

    indices: Mapping[str, Indices]
    shrinks: tuple[Shrink, ...] = ()
    example: tuple[tuple[tuple[int, ...], str], ...] = ()
    batch: int = 1

    def as_text(self) -> str:
        """The state as JSON."""
        indices = {
            name: [None if index is None else index.tolist() for index in each] for name, each in self.indices.items()
        }
        return json.dumps({"indices": indices, "shrinks": self.shrinks, "example": self.example, "batch": self.batch})


def read_shrunk_state(text: str) -> ShrunkState:
    """Read a state that `as_text` wrote."""
    try:
        read = json.loads(text)
        indices = {
            str(name): tuple(None if index is None else torch.tensor(index, dtype=torch.int64) for index in each)
            for name, each in read["indices"].items()
        }
        shrinks = tuple(Shrink(int(step), int(weights), float(share)) for step, weights, share in read["shrinks"])
        example = tuple((tuple(map(int, shape)), str(dtype)) for shape, dtype in read["example"])
        batch = int(read["batch"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("`shrunk` of the state is not what a pruner saves about a shrunk network") from None
    return ShrunkState(indices, shrinks, example, batch)


def first_size(example: tuple[Tensor, ...]) -> int:
    """The size of the first axis of an example: how many examples are in a batch."""
    return next((len(each) for each in example if each.ndim), 1)


def describe_example(example: tuple[Tensor, ...] | None) -> tuple[tuple[tuple[int, ...], str], ...]:
    """The shape and the type of each input."""
    return tuple((tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in example or ())


def example_of_zeros(
    described: tuple[tuple[tuple[int, ...], str], ...], device: torch.device
) -> tuple[Tensor, ...] | None:
    """Inputs of these shapes and types; None if none are described. A trace does not depend on their values."""
    return tuple(torch.zeros(shape, dtype=getattr(torch, kind), device=device) for shape, kind in described) or None

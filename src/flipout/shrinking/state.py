"""What a saved state says about a shrunk network, as one string: the channels that are left, and the shrinks so far."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..channels.comparison import Arguments
from ..channels.copies import first_line
from ..views.cut import Indices

LARGEST_EXAMPLE = 1 << 28
"""The most numbers that the inputs of two examples can have in a state."""


class Described(NamedTuple):
    """An input of a network.

    Args:
        name: the name of the argument; empty if it is given by position.
        shape: its shape.
        kind: its type, such as "float32".
    """

    name: str
    shape: tuple[int, ...]
    kind: str


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
        example: the inputs that the network was traced with; none before the first shrink.
        batch: the number of examples in a batch.
    """

    indices: Mapping[str, Indices]
    shrinks: tuple[Shrink, ...] = ()
    example: tuple[Described, ...] = ()
    batch: int = 1

    def as_text(self) -> str:
        """The state as JSON."""
        indices = {
            name: [None if index is None else index.tolist() for index in each] for name, each in self.indices.items()
        }
        return json.dumps({"indices": indices, "shrinks": self.shrinks, "example": self.example, "batch": self.batch})


def read_shrunk_state(text: str) -> ShrunkState:
    """Read a state that `as_text` wrote. Nothing large is made of what is not."""
    try:
        read = json.loads(text)
        indices = {name: tuple(map(_index, each)) for name, each in read["indices"].items()}
        shrinks = tuple(_shrink(*each) for each in read["shrinks"])
        example = tuple(_described(*each) for each in read["example"])
        (batch,) = _shape([read["batch"]])
        if sum(math.prod(each.shape) for each in example) > LARGEST_EXAMPLE:
            raise ValueError(f"an example of more than {LARGEST_EXAMPLE:,} numbers")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"`shrunk` of the state is not what a pruner saves about a shrunk network: {first_line(error)}"
        ) from None
    return ShrunkState(indices, shrinks, example, batch)


def _index(index: Any) -> Tensor | None:
    """The indices that are left of a dimension: whole numbers that increase."""
    if index is None:
        return None
    rises = all(type(number) is int for number in index) and all(a < b for a, b in itertools.pairwise(index))
    if not index or not rises or index[0] < 0 or index[-1] >= 1 << 31:
        raise ValueError("indices that are not whole numbers in increasing order")
    return torch.tensor(index, dtype=torch.int64)


def _shrink(step: Any, weights: Any, share: Any) -> Shrink:
    if type(step) is not int or type(weights) is not int or min(step, weights) < 0 or not 0 <= share <= 1:
        raise ValueError("a shrink with impossible numbers")
    return Shrink(step, weights, float(share))


def _described(name: Any, shape: Any, kind: Any) -> Described:
    if (
        not isinstance(name, str)
        or not isinstance(kind, str)
        or not isinstance(getattr(torch, kind, None), torch.dtype)
    ):
        raise ValueError("an example with unknown names or types of numbers")
    return Described(name, _shape(shape), kind)


def _shape(sizes: Any) -> tuple[int, ...]:
    if not all(type(size) is int and 0 < size < 1 << 31 for size in sizes):
        raise ValueError("sizes that are not positive whole numbers")
    return tuple(sizes)


def describe_example(example: Arguments | None) -> tuple[Described, ...]:
    """The name, the shape and the type of each input."""
    args, kwargs = example or ((), {})
    named = (*(("", each) for each in args), *kwargs.items())
    return tuple(Described(name, tuple(each.shape), str(each.dtype).removeprefix("torch.")) for name, each in named)


def example_of_zeros(described: tuple[Described, ...], device: torch.device) -> Arguments:
    """Inputs of these shapes and types. A trace does not depend on their values."""
    made = [(each.name, torch.zeros(each.shape, dtype=getattr(torch, each.kind), device=device)) for each in described]
    return tuple(tensor for name, tensor in made if not name), {name: tensor for name, tensor in made if name}

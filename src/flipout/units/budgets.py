"""Budgets: what a sparsity is a share of, and what the channels of a network cost in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..modules import unwrapped
from ..weights import Weight
from .channel_counts import ChannelCounts
from .channel_table import ChannelTable
from .granularity import Target

TITLES: dict[Target, str] = {
    "weights": "weights",
    "macs": "multiply-adds",
    "parameters": "parameters",
    "latency": "latency",
}
"""What each target counts, for people."""
SHARES = 10**9
"""A plan of shares instead of weights is that of a network with so many."""


@dataclass(frozen=True)
class Costs:
    """What a network costs with some of its channels: a sum over tensors, of the elements that are left times a price.

    The weights that are pruned come first, in their order. Each list has one entry for each tensor.

    Args:
        units: the number of units.
        outputs: the unit of each index of one dimension; `units` for an index that always stays.
        inputs: the same for a second dimension; None if there is none.
        positions: the number of elements for each pair of indices.
        prices: what one element costs.
    """

    units: int
    outputs: list[Tensor]
    inputs: list[Tensor | None]
    positions: list[int]
    prices: list[int]

    def counts(self, alive: Tensor) -> ChannelCounts:
        """What is kept with some units, which can then be removed and added."""
        return ChannelCounts(self.units, self.outputs, self.inputs, self.positions, alive, self.prices)

    @cached_property
    def total(self) -> int:
        """The costs of the whole network."""
        return self.counts(torch.ones(self.units, dtype=torch.bool)).kept

    def floors(self, floors: Sequence[int]) -> list[int]:
        """The least number of elements that each tensor keeps, from that of each weight."""
        return [*floors, *[0] * (len(self.prices) - len(floors))]


def costs_of(target: Target, table: ChannelTable, model: nn.Module, weights: Sequence[Weight]) -> Costs:
    """The costs of a network in the unit of a target. Those of "latency" are multiply-adds; see `latency.py`."""
    pairs = [len(outputs) * len(inputs) for outputs, inputs in zip(table.outputs, table.inputs, strict=True)]
    positions = [weight.size // max(1, number) for weight, number in zip(weights, pairs, strict=True)]
    costs = Costs(table.units, list(table.outputs), list(table.inputs), positions, [1] * len(weights))
    if target == "weights":
        return costs
    covered, graph = {weight.name for weight in weights}, table.graph
    if target == "parameters":
        shapes = {name: tuple(each.shape) for name, each in unwrapped(model).named_parameters() if name not in covered}
        return _with_tensors(costs, table, shapes, dict.fromkeys(shapes, 1))
    costs.prices[:] = [graph.places.get(weight.name, 0) for weight in weights]
    others = {name: tuple(map(len, graph.tensors[name])) for name in graph.places if name not in covered}
    return _with_tensors(costs, table, others, graph.places)


def _with_tensors(
    costs: Costs, table: ChannelTable, shapes: Mapping[str, tuple[int, ...]], prices: Mapping[str, int]
) -> Costs:
    """Costs with further tensors. A dimension beyond two that has units counts as a whole."""
    outputs, inputs = list(costs.outputs), list(costs.inputs)
    positions, every = list(costs.positions), list(costs.prices)
    for name, shape in shapes.items():
        dims = [table.numbers[sets] for sets in table.graph.tensors.get(name, ())]
        sides = [units for units in dims if bool((units < costs.units).any())][:2]
        whole = torch.full((1,), costs.units)
        outputs.append(sides[0] if sides else whole)
        inputs.append(sides[1] if len(sides) > 1 else None)
        positions.append(math.prod(shape) // math.prod(map(len, sides)))
        every.append(prices[name])
    return Costs(costs.units, outputs, inputs, positions, every)

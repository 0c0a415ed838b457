"""The scores of channels, against loops over every weight."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from flipout.units.channel_table import ChannelTable, table_of_network
from flipout.weights import find_weights


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = x + self.second(self.inner(x).relu())
        return self.head(torch.flatten(nn.functional.max_pool2d(x, 2), 1))  # type: ignore[no-any-return]


def table() -> tuple[ChannelTable, list[Tensor]]:
    torch.manual_seed(0)
    model = Residual()
    weights = find_weights(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None)
    return table_of_network(model, weights, (torch.randn(2, 3, 4, 4),)), [
        weight.parameter.detach() for weight in weights
    ]


@pytest.mark.parametrize("how", ["mean", "sum", "norm"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_channel_is_worth_what_its_weights_are_relative_to_their_layers(
    how: Literal["mean", "sum", "norm"], masked: bool
) -> None:
    units, weights = table()
    alive = torch.rand(units.units) < 0.7 if masked else torch.ones(units.units, dtype=torch.bool)
    kept = [*alive.tolist(), True]
    members: list[list[float]] = [[] for _ in range(units.units + 1)]
    for weight, outputs, inputs in zip(weights, units.outputs, units.inputs, strict=True):
        assert inputs is not None
        counts = torch.tensor([[kept[o] and kept[i] for i in inputs] for o in outputs])
        scores = weight.abs() * counts.view(*counts.shape, *(1,) * (weight.ndim - 2))
        relative = scores / scores.mean()
        for place, output in enumerate(outputs.tolist()):
            members[output] += relative[place][counts[place]].flatten().tolist()
        for place, unit in enumerate(inputs.tolist()):
            members[unit] += relative[:, place][counts[:, place]].flatten().tolist()
    masks = _masks(units, alive, weights) if masked else [None] * len(weights)
    sizes = [weight.numel() for weight in weights]
    found = units.scores(lambda n: weights[n].abs(), masks, how, sizes, lambda n: ValueError(str(n)))
    for unit in range(units.units):
        if kept[unit]:
            values = torch.tensor(members[unit], dtype=torch.float64)
            expected = {"mean": values.mean(), "sum": values.sum(), "norm": values.norm()}[how]
            torch.testing.assert_close(found[unit], expected, rtol=1e-5, atol=1e-5)


def _masks(units: ChannelTable, alive: Tensor, weights: list[Tensor]) -> list[Tensor | None]:
    kept = torch.cat([alive, torch.ones(1, dtype=torch.bool)])
    result: list[Tensor | None] = []
    for weight, outputs, inputs in zip(weights, units.outputs, units.inputs, strict=True):
        assert inputs is not None
        pairs = kept[outputs][:, None] & kept[inputs][None]
        result.append(pairs.view(*pairs.shape, *(1,) * (weight.ndim - 2)).expand_as(weight).clone())
    return result


def test_masks_show_which_channels_are_alive() -> None:
    units, weights = table()
    alive = torch.ones(units.units, dtype=torch.bool)
    alive[::2] = False
    masks = _masks(units, alive, weights)
    assert torch.equal(units.alive([mask for mask in masks if mask is not None]), alive)


def test_a_stream_and_the_channels_inside_a_block_are_two_families() -> None:
    units, _ = table()
    assert units.units == 4 + 6
    assert len(set(units.families)) == 2

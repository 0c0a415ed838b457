"""Weights that the final masks keep in channels that nothing reads: they count, and come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import flipout

from .networks import parts_in_network, set_aside
from .perceptrons import EXAMPLE, STEPS, Parts, pruned, steps

pytestmark = pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning")

OPTIONS: dict[str, Any] = {"make": lambda model: torch.optim.AdamW(model.parameters(), 0.01), "method": flipout.FlipOut}
LAST = STEPS // 2
"""The step of the last pruning."""


def final(**options: Any) -> Parts:
    """A training after its last pruning, still whole."""
    parts = pruned(**OPTIONS, second_chances=None, **options)
    steps(parts, 0, LAST)
    assert parts[2].finished
    return parts


def everything(parts: Parts) -> dict[str, torch.Tensor]:
    """What the network, the optimizer and the pruner have for each weight, in its original shape."""
    model, optimizer, pruner = parts
    found = {f"{name} values": parameter.detach().clone() for name, parameter in model.named_parameters()}
    for weight in pruner.weights:
        state = optimizer.state[weight.parameter]
        found |= {f"{weight.name} {key}": state[key].clone() for key in ("exp_avg", "exp_avg_sq")}
        found[f"{weight.name} flips"] = pruner.statistics["flips"][weight.name].clone()
        found[f"{weight.name} mask"] = weight.mask.clone()
    return found


def test_they_are_restored_as_they_were() -> None:
    parts = _, _, pruner = final()
    before = everything(parts)
    pruner.shrink(EXAMPLE)
    there = parts_in_network(pruner)
    assert set_aside(pruner) == sum(int((before[f"{name} mask"] & ~left).sum()) for name, left in there.items()) > 0
    steps(parts, LAST, STEPS)
    pruner.expand()
    after = everything(parts)
    for key, tensor in after.items():
        left = there.get(key.split()[0])
        if left is not None:
            assert torch.equal(tensor[~left], before[key][~left])
            assert not key.endswith("values") or not torch.equal(tensor[left], before[key][left])


def test_they_count() -> None:
    parts = _, _, pruner = final()
    nonzero, table = pruner.nonzero, list(pruner.summary().layers)
    pruner.shrink(EXAMPLE)
    for _ in range(2):
        assert pruner.nonzero == nonzero == sum(pruner.events[-1].kept.values())
        assert list(pruner.summary().layers) == table
        steps(parts, LAST, STEPS)


def test_none_are_set_aside_while_prunings_follow() -> None:
    parts = _, _, pruner = pruned(**OPTIONS, second_chances=None)
    for number in range(LAST - 1):
        steps(parts, number, number + 1)
        pruner.shrink(EXAMPLE)
        assert not set_aside(pruner)
    steps(parts, LAST - 1, LAST)
    pruner.shrink(EXAMPLE)
    assert set_aside(pruner)


def test_a_state_that_sets_some_aside_while_prunings_follow_is_refused() -> None:
    _, _, pruner = final()
    pruner.shrink(EXAMPLE)
    assert set_aside(pruner)
    with pruner.expanded():
        shrunk = pruner.state_dict()["shrunk"]
    others = _, _, other = pruned(**OPTIONS, second_chances=None)
    steps(others, 0, LAST - 1)
    assert not other.finished
    with pytest.raises(ValueError, match="`shrunk` of the state"):
        other.load_state_dict({**other.state_dict(), "shrunk": shrunk})


def test_none_are_set_aside_where_noise_is_computed_from_them() -> None:
    for relative_to, few in (("gradient", True), ("weight", False)):
        pruner = final(noise=flipout.GradientNoise(1e-3, relative_to))[2]  # type: ignore[arg-type]
        pruner.shrink(EXAMPLE)
        assert bool(set_aside(pruner)) == few


def test_with_dead_first_hardly_any_are_left_after_an_event() -> None:
    """So the network is shrunk while prunings follow about as far as it would be if they were over."""
    computed = []
    for dead_first in (True, False):
        parts = _, _, pruner = pruned(**OPTIONS, second_chances=None, dead_first=dead_first)
        steps(parts, 0, LAST - 4)
        pruner.shrink(EXAMPLE)
        computed.append(pruner.computed)
    assert computed[0] < computed[1] / 2


def test_a_shrink_that_removes_nothing_yet_does_not_rule_out_later_ones() -> None:
    """One layer of the network cannot lose channels, and at first all others have weights that are kept."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x).relu() * self.first.out_features / 32
            return self.last(self.middle(hidden).relu())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    parts = _, _, pruner = pruned(Fixed(), sparsity=0.98)
    steps(parts, 0, 8)
    pruner.shrink(EXAMPLE)
    assert not pruner.shrunk
    steps(parts, 8, 12)
    pruner.shrink(EXAMPLE)
    assert pruner.shrunk

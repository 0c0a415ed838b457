"""Networks and optimizers that cannot be shrunk: the loop of the documentation continues, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout

from .perceptrons import EXAMPLE, STEPS, layers, momentum, numbers, pruned, shapes, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


class Deciding(nn.Module):
    """Looks at values, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x if x.sum() < 1e9 else -x)  # type: ignore[no-any-return]


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, pruner: flipout.Pruner) -> int:
    """The loop of the documentation. Returns how often it tried to shrink."""
    tried = 0
    for number in range(STEPS):
        steps((model, optimizer), number, number + 1)
        if pruner.worth_shrinking:
            tried += 1
            model = pruner.shrink(numbers(number)[0])
    return tried


def test_a_network_that_cannot_be_traced_is_tried_once() -> None:
    model, optimizer, pruner = pruned(Deciding())
    with pytest.warns(flipout.NotShrunkWarning, match="cannot be recorded") as caught:
        assert loop(model, optimizer, pruner) == 1
    # Garbage of other tests may warn here, too.
    assert [each.filename for each in caught if each.category is flipout.NotShrunkWarning] == [__file__]
    assert not pruner.shrunk
    assert not pruner.worth_shrinking
    with pytest.raises(ValueError, match="cannot be recorded"):
        pruner.shrink(EXAMPLE)


class Rows(torch.optim.SGD):
    """Keeps a number for each row of a weight."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(3, len(parameter))
        super().step(closure)


@pytest.mark.parametrize("make", [torch.optim.Adafactor, Rows])
def test_an_optimizer_that_cannot_be_cut_is_not_worth_a_try(make: Callable[..., torch.optim.Optimizer]) -> None:
    model, optimizer, pruner = pruned(make=lambda model: make(model.parameters(), lr=0.01))
    assert loop(model, optimizer, pruner) == 0


def test_parameters_of_another_optimizer_are_not_cut() -> None:
    model = layers()
    biases = torch.optim.Adam([each for each in model.parameters() if each.ndim == 1], 0.01)

    def weights(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([each for each in model.parameters() if each.ndim > 1], 0.05, momentum=0.9)

    parts = _, _, pruner = pruned(model, weights)
    for number in range(STEPS):
        steps(parts, number, number + 1)
        biases.step()
    with pytest.raises(ValueError, match=r"0\.bias is not in the optimizer"):
        pruner.shrink(EXAMPLE)
    assert shapes(model) == shapes(layers())
    for each in model.parameters():
        each.requires_grad_(each.ndim > 1)
    pruner.shrink(EXAMPLE)
    assert pruner.shrunk


def test_frozen_parameters_need_no_optimizer() -> None:
    model = layers()
    model[0].bias.requires_grad_(False)
    parts = pruned(model, lambda model: momentum(nn.ParameterList(p for p in model.parameters() if p.requires_grad)))
    steps(parts, 0, STEPS)
    parts[2].shrink(EXAMPLE)
    assert shapes(model)[1][0] < 32


def test_a_pruner_that_was_removed_shrinks_nothing() -> None:
    parts = model, optimizer, pruner = pruned()
    steps(parts, 0, STEPS)
    pruner.shrink(EXAMPLE)
    with pruner.expanded():
        state = pruner.state_dict()
    pruner.remove()
    with pytest.raises(ValueError, match="removed"):
        pruner.shrink(EXAMPLE)
    pruner.load_state_dict(state)
    assert not pruner.worth_shrinking
    assert shapes(model) == shapes(layers())
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(("granularity", "sparsity"), [((2, 2), 0.8), ("2:4", 0.5)])
def test_units_that_would_be_cut_apart_wait_for_the_end(granularity: Any, sparsity: float) -> None:
    parts = pruned(floor=0, sparsity=sparsity, granularity=granularity)
    steps(parts, 0, 12)
    assert not parts[2].worth_shrinking
    with pytest.raises(ValueError, match=r"Wait until pruner\.finished"):
        parts[2].shrink(EXAMPLE)
    steps(parts, 12, STEPS)
    parts[2].shrink(EXAMPLE)

"""Shrinks after the first one, and without a pruning of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flipout

from .perceptrons import EXAMPLE, STEPS, layers, momentum, pruned, shapes, steps

pytestmark = pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning")


def test_a_shrink_that_removes_nothing_is_not_recorded() -> None:
    parts = pruned()
    steps(parts, 0, STEPS)
    for _ in range(2):
        parts[2].shrink(EXAMPLE)
    assert len(parts[2].shrinks) == 1


def test_optimizer_state_that_is_added_after_a_shrink_stays_with_its_weights() -> None:
    ends = []
    for shrinks in (True, False):
        parts = model, optimizer, pruner = pruned(
            make=lambda model: torch.optim.SGD(model.parameters(), 0.05), dead_first=True
        )
        for number in range(STEPS):
            if number == 13:
                optimizer.param_groups[0]["momentum"] = 0.9
            steps(parts, number, number + 1)
            if shrinks and number == 11:
                pruner.shrink(EXAMPLE)
            assert pruner.shrunk == (shrinks and number >= 11)
        pruner.expand()
        ends.append({name: tensor.clone() for name, tensor in model.state_dict().items() if "weight" in name})
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.usefixtures("_free_shrinks")
def test_a_network_that_has_its_zeros_already_is_worth_shrinking() -> None:
    parts = model, _, pruner = pruned()
    steps(parts, 0, STEPS)
    pruner.remove()
    optimizer = momentum(model)
    keeper = flipout.KeepZeros(model, optimizer, steps=STEPS)
    assert not keeper.worth_shrinking
    steps((model, optimizer), 0, 1)
    assert keeper.worth_shrinking
    keeper.shrink(EXAMPLE)
    assert not keeper.worth_shrinking
    assert keeper.shrunk
    assert not keeper.lost_zeros()


class WithEmptyLayer(nn.Module):
    """Has a layer without inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.empty = layers(), nn.Linear(0, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.empty(x[:, :0]).sum()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors", "ignore::flipout.ChannelWarning")
@pytest.mark.parametrize(("granularity", "sparsity"), [("weight", 0.95), ("channel", 0.6)])
def test_a_layer_without_weights_does_not_prevent_shrinking(granularity: str, sparsity: float) -> None:
    parts = model, _, pruner = pruned(WithEmptyLayer(), floor=0, granularity=granularity, sparsity=sparsity)
    steps(parts, 0, STEPS)
    pruner.summary(EXAMPLE)
    pruner.shrink(EXAMPLE)
    assert pruner.shrunk
    pruner.expand()
    assert shapes(model) == shapes(WithEmptyLayer())

"""What the summary says of channels: how much of a network they are, how much of it goes, and which layers stay."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import sgd


class Attention(nn.Module):
    """A residual stream, whose norm keeps it whole, and a layer that is excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.up, self.down = (
            nn.Linear(8, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )
        self.side, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.inner(x))
        x = x + self.down(self.up(x).relu())
        return self.head(self.side(x).relu())  # type: ignore[no-any-return]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore::flipout.ChannelWarning")
def test_the_summary_has_a_table_of_what_stays() -> None:
    torch.manual_seed(0)
    model = Attention()
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.GlobalMagnitude(
        model, optimizer, sparsity=0.3, steps=8, granularity="channel", exclude="head", second_chances=None
    )
    assert "whole channels" not in str(pruner.summary())  # before the first call
    train(model, optimizer, 8)
    text = str(pruner.summary())
    prunable, free = 8 * 8 + 2 * 8 * 16 + 8 * 6, 2 * 8 * 15
    assert f"{free} of {prunable} weights ({free / prunable:.1%}) can be removed in whole channels" in text
    assert f"{(prunable - round(0.7 * prunable)) / free:.1%} of these will go" in text
    rows = {line.split()[0]: line for line in text.partition("keep outputs:")[2].splitlines() if line}
    assert re.search(r"inner\.weight +8 +8 .*add at test_channel_report\.py:\d+", rows["inner.weight"])
    assert "down.weight" in rows
    assert "not pruned" in rows["side.weight"]
    assert "up.weight" not in rows


def test_a_shrink_that_removes_nothing_says_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = sgd(model, lr=0.01)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.1, steps=8)
    train(model, optimizer, 8)
    with pytest.warns(flipout.NotShrunkWarning, match="removed nothing"):
        pruner.shrink(torch.randn(2, 8))
    assert not pruner.shrunk


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_multiply_adds_are_those_of_one_example(batch: int) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    whole, one = 8 * 16 + 16 * 3, 8 + 3  # of which one channel stays
    report = flipout.prune(
        model, [torch.randn(batch, 8)], sparsity=0.5, granularity="channel", target="macs", method="magnitude"
    )
    assert f"{whole - one} of {whole} multiply-adds" in str(report)
    pruner = flipout.GlobalMagnitude(model, sgd(model), sparsity=0.99, steps=8, granularity="channel", target="macs")
    model(torch.randn(batch, 8)).sum().backward()
    with pytest.raises(ValueError, match=f"cannot keep fewer than {one} multiply-adds here, but 2 are asked for"):
        pruner.optimizer.step()

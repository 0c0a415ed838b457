"""A compiled optimizer step and a compiled training step prune like eager ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, mlp

Step = Callable[[nn.Module, torch.optim.Optimizer], Callable[[Tensor, Tensor], None]]


def eager(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def compiled_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    """PyTorch's recipe for a compiled optimizer."""

    @torch.compile(fullgraph=False)
    def update() -> None:
        optimizer.step()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        update()

    return step


def compiled_bound_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    """`torch.compile(optimizer.step)` itself."""
    update = torch.compile(optimizer.step)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        update()

    return step


def compiled_training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    return torch.compile(eager(model, optimizer), fullgraph=False)


def trained(make_step: Step) -> tuple[flipout.Pruner, nn.Module]:
    torch._dynamo.reset()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20, schedule=flipout.Geometric(0.9, 20, 3))
    step = make_step(model, optimizer)
    for x, y in batches(20):
        step(x, y)
        assert_masked(pruner)
    return pruner, model


@pytest.mark.parametrize("make_step", [compiled_optimizer, compiled_bound_step, compiled_training_step])
def test_masks_and_flips_equal_those_of_an_eager_run(make_step: Step) -> None:
    plain, _ = trained(eager)
    pruner, _ = trained(make_step)
    assert pruner.step == 20
    assert pruner.nonzero == 35
    for name, mask in plain.masks.items():
        assert torch.equal(pruner.masks[name], mask)
        assert torch.equal(pruner.statistics["flips"][name], plain.statistics["flips"][name])


def test_a_full_graph_is_refused_with_a_way_out() -> None:
    torch._dynamo.reset()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    with pytest.raises(Exception, match="fullgraph=False"):
        torch.compile(optimizer.step, fullgraph=True)()

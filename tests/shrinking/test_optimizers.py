"""Which optimizers go on in the same way with a part of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipout.shrinking.refusals import ELEMENTWISE, is_elementwise_optimizer, is_same_in_pieces

from .perceptrons import EXAMPLE, STEPS, aside, momentum, pruned, shapes, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


class Own(torch.optim.Optimizer):
    """Descends by a function of the gradient and the weight."""

    def __init__(self, parameters: Any, direction: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.direction = direction

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * self.direction(parameter.grad, parameter))


def sign(grad: Tensor, _: Tensor) -> Tensor:
    return grad.sign()


def trust_ratio(grad: Tensor, weight: Tensor) -> Tensor:
    ratio = torch.linalg.vector_norm(weight) / torch.linalg.vector_norm(grad).clamp_min(1e-12)
    return torch.mul(grad, ratio)


def centralized(grad: Tensor, _: Tensor) -> Tensor:
    return grad - grad.mean(tuple(range(1, grad.ndim)), keepdim=True) if grad.ndim > 1 else grad


def only_matrices(grad: Tensor, _: Tensor) -> Tensor:
    assert grad.ndim == 2
    return grad


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_the_trial_agrees_with_what_is_known_of_torch(kind: type[torch.optim.Optimizer]) -> None:
    optimizer = kind([nn.Parameter(torch.ones(3))], lr=0.01)  # type: ignore[call-arg]
    assert is_same_in_pieces(optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize(
    ("direction", "is_elementwise"), [(sign, True), (trust_ratio, False), (centralized, False), (only_matrices, False)]
)
def test_an_unknown_optimizer_is_tried(direction: Callable[[Tensor, Tensor], Tensor], is_elementwise: bool) -> None:
    parts = pruned(make=lambda model: Own(model.parameters(), direction))
    assert is_elementwise_optimizer(parts[1]) == is_elementwise
    if direction is not only_matrices:
        steps(parts, 0, STEPS)
        assert parts[2].worth_shrinking == is_elementwise
    if direction in (trust_ratio, centralized):
        with pytest.raises(ValueError, match="^the network cannot be shrunk: Own"):
            parts[2].shrink(EXAMPLE)


def test_a_trial_leaves_the_optimizer_alone() -> None:
    class Counting(torch.optim.SGD):
        taken = 0

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.taken += 1
            super().step(closure)

    weight = nn.Parameter(torch.ones(4, 3))
    optimizer = Counting([weight], lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)  # it replaces `optimizer.step`
    weight.grad = torch.ones(4, 3)
    optimizer.step()
    before, momenta = weight.clone(), optimizer.state[weight]["momentum_buffer"].clone()
    assert is_elementwise_optimizer(optimizer)
    assert torch.equal(weight, before)
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], momenta)
    assert list(optimizer.state) == [weight]
    assert optimizer.taken == 1
    scheduler.step()


def test_state_in_lists_and_dictionaries_is_refused() -> None:
    class Averages(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["averages"] = [parameter.detach().clone()]

    parts = model, _, pruner = pruned(make=lambda model: Averages(model.parameters(), 0.1))
    steps(parts, 0, STEPS)
    before = shapes(model)
    with pytest.raises(ValueError, match="averages"):
        pruner.shrink(EXAMPLE)
    assert shapes(model) == before


def test_code_that_walks_the_groups_finds_gradients() -> None:
    """Weights that are set aside are in the groups of the optimizer, and have gradients and names as all others have."""
    named: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.SGD(  # noqa: E731
        model.named_parameters(), 0.1, momentum=0.9
    )
    for make in (momentum, named):
        parts = model, optimizer, pruner = pruned(make=make)
        steps(parts, 0, STEPS // 2)
        pruner.shrink(EXAMPLE)
        assert aside(pruner)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert len(everything) > len(list(model.parameters()))
        assert all(parameter.grad is not None for parameter in everything)
        assert all(not each.grad.any() for each in aside(pruner) if each.grad is not None)
        optimizer.step()
        for group in optimizer.param_groups:
            assert len(group.get("param_names", group["params"])) == len(group["params"])
        pruner.expand()
        assert [len(group["params"]) for group in optimizer.param_groups] == [len(list(model.parameters()))]
        assert all(
            len(group.get("param_names", group["params"])) == len(group["params"]) for group in optimizer.param_groups
        )

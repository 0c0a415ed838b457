"""Which optimizers continue in the same way with some elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipout.shrinking.refusals import ELEMENTWISE, is_elementwise_optimizer, is_same_in_part

from .networks import set_aside
from .perceptrons import EXAMPLE, STEPS, momentum, numbers, pruned, shapes, steps

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


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_the_trial_agrees_with_what_is_known_of_torch(kind: type[torch.optim.Optimizer]) -> None:
    optimizer = kind([nn.Parameter(torch.ones(3))], lr=0.01)  # type: ignore[call-arg]
    assert is_same_in_part(optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize(("direction", "is_elementwise"), [(sign, True), (trust_ratio, False), (centralized, False)])
def test_an_unknown_optimizer_is_tried(direction: Callable[[Tensor, Tensor], Tensor], is_elementwise: bool) -> None:
    parts = pruned(make=lambda model: Own(model.parameters(), direction))
    assert is_elementwise_optimizer(parts[1]) == is_elementwise
    steps(parts, 0, STEPS)
    assert parts[2].worth_shrinking == is_elementwise
    if not is_elementwise:
        with pytest.raises(ValueError, match="Own"):
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


def test_the_groups_of_the_optimizer_stay_as_they_are() -> None:
    """Code that walks them finds the parameters of the model and their names, and nothing else."""
    named: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.SGD(  # noqa: E731
        model.named_parameters(), 0.1, momentum=0.9
    )
    for make in (momentum, named):
        parts = model, optimizer, pruner = pruned(make=make)
        steps(parts, 0, STEPS)
        before = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        pruner.shrink(EXAMPLE)
        assert set_aside(pruner)
        steps(parts, 0, 1)
        for _ in range(2):
            for group, other in zip(optimizer.param_groups, before, strict=True):
                assert all(one is another for one, another in zip(group["params"], other["params"], strict=True))
                assert group.get("param_names") == other.get("param_names")
            assert set(optimizer.state) == set(model.parameters())
            pruner.expand()


class Clocked(Own):
    """Draws random numbers, and keeps a clock in an object of its own."""

    def __init__(self, parameters: Any, direction: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(parameters, direction)
        self.clock = {"steps": 0}
        self.held = [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.clock["steps"] += 1
        torch.rand(1)
        self.held[0].mul_(0.99)
        super().step(closure)


def test_asking_changes_nothing() -> None:
    """The clock, the weights and torch's random numbers are those of a training that never asks."""
    ends = []
    for asks in (False, True):
        model, optimizer, pruner = pruned(make=lambda model: Clocked(model.parameters(), sign))
        torch.manual_seed(0)
        for number in range(STEPS):
            steps((model, optimizer), number, number + 1)
            if asks:
                _ = pruner.worth_shrinking
        ends.append((optimizer.clock, torch.get_rng_state(), list(model.parameters())))  # type: ignore[attr-defined]
    assert ends[0][0] == ends[1][0] == {"steps": STEPS}
    assert torch.equal(ends[0][1], ends[1][1])
    assert all(torch.equal(a, b) for a, b in zip(ends[0][2], ends[1][2], strict=True))


def test_a_kind_of_group_is_tried_once() -> None:
    tried = []

    class Tried(Own):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            tried.append(self.param_groups[0]["lr"])
            super().step(closure)

    optimizer = Tried([nn.Parameter(torch.ones(3)) for _ in range(2)], sign)
    assert is_elementwise_optimizer(optimizer)
    first = len(tried)
    optimizer.param_groups[0]["lr"] = 0.01
    assert is_elementwise_optimizer(optimizer)
    assert len(tried) == first
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "decay": 0.1})
    assert is_elementwise_optimizer(optimizer)
    assert len(tried) == 2 * first


class Layerwise(torch.optim.Optimizer):
    """As LARS and LAMB are used: the ratio of norms counts only in groups with weight decay."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = parameter.grad + group["weight_decay"] * parameter
                    scaled = trust_ratio(direction, parameter) if group["weight_decay"] else direction
                    parameter.sub_(group["lr"] * scaled)


def test_every_group_counts() -> None:
    def groups(model: nn.Module) -> torch.optim.Optimizer:
        vectors, matrices = ([p for p in model.parameters() if (p.ndim > 1) == many] for many in (False, True))
        return Layerwise([{"params": vectors}, {"params": matrices, "weight_decay": 0.1}])

    parts = pruned(make=groups)
    steps(parts, 0, STEPS)
    assert not parts[2].worth_shrinking
    with pytest.raises(ValueError, match="Layerwise"):
        parts[2].shrink(EXAMPLE)


def centralize(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.copy_(centralized(parameter.grad, parameter))


@pytest.mark.parametrize("where", ["before", "after", "gradient", "accumulated"])
def test_hooks_that_may_look_at_whole_tensors_are_refused(where: str) -> None:
    parts = model, optimizer, pruner = pruned()
    weight: nn.Parameter = model[2].weight  # type: ignore[index]
    handle = {
        "before": lambda: optimizer.register_step_pre_hook(centralize),
        "after": lambda: optimizer.register_step_post_hook(centralize),
        "gradient": lambda: weight.register_hook(lambda grad: centralized(grad, weight)),
        "accumulated": lambda: weight.register_post_accumulate_grad_hook(lambda each: centralize(optimizer)),
    }[where]()
    steps(parts, 0, STEPS)
    assert not pruner.worth_shrinking
    with pytest.raises(ValueError, match="hook"):
        pruner.shrink(EXAMPLE)
    handle.remove()
    pruner.shrink(EXAMPLE)
    assert pruner.shrunk


def test_what_training_loops_usually_add_does_not_prevent_shrinking() -> None:
    """Schedulers, gradient scalers, moving averages and the profiler."""
    model, optimizer, pruner = pruned()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.profiler.profile():
        for number in range(STEPS):
            x, labels = numbers(number)
            scaler.scale(nn.functional.cross_entropy(model(x), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            average.update_parameters(model)
            optimizer.zero_grad()
    assert pruner.worth_shrinking
    pruner.shrink(EXAMPLE)
    assert pruner.shrunk

"""`dead_first`: weights on no live path are pruned before all others."""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.export import effective_weights
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, train

SCHEDULED = ["flipout", "magnitude", "random", "magnitude-uncertainty", "hoyer-square", "lottery"]


def run(model: nn.Module, method: str = "magnitude", steps: int = 40, **options: Any) -> flipout.Pruner:
    """Train a model and prune it with `dead_first`."""
    shape = (1, 6, 6) if isinstance(model[0], nn.Conv2d) else (12,)  # type: ignore[index]
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, steps=steps, **{"dead_first": True, **options})
    penalty = pruner.penalty if isinstance(pruner, flipout.HoyerSquare) else None
    train(model, optimizer, steps, shape=shape, penalty=penalty)
    return pruner


def dead_in(pruner: flipout.Pruner, *shape: int) -> int:
    return pruner.nonzero - sum(
        pair[1] for pair in effective_weights(with_values(pruner), torch.randn(2, *shape)).layers.values()
    )


def with_values(pruner: flipout.Pruner) -> nn.Module:
    """A copy of the model in which every kept weight is not zero, so that the analysis of values agrees with masks."""
    model = copy.deepcopy(pruner.model)
    for name, mask in pruner.masks.items():
        weight = model.get_parameter(name)
        weight.data = torch.where(mask & (weight == 0), 1.0, weight.data)
    return model


@pytest.mark.parametrize("method", SCHEDULED)
@pytest.mark.parametrize("sparsity", [0.9, 0.95])
def test_no_kept_weight_is_dead(method: str, sparsity: float) -> None:
    pruner = run(mlp(), method, sparsity=sparsity)
    assert pruner.finished
    assert_masked(pruner)
    assert pruner.nonzero == round(352 * (1 - sparsity))
    assert dead_in(pruner, 12) == 0


def test_without_it_weights_are_wasted() -> None:
    """The test above would prove nothing otherwise."""
    assert dead_in(run(mlp(), "random", sparsity=0.95, dead_first=False), 12) > 0


def test_a_convolutional_network_with_a_norm() -> None:
    pruner = run(convnet(), sparsity=0.95)
    assert pruner.nonzero == round(438 * 0.05)
    assert dead_in(pruner, 1, 6, 6) == 0


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.body(x) + self.around(x)).relu()
        return out


def test_a_residual_network_keeps_its_paths() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Block(8, 8),
        Block(8, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    optimizer = sgd(model, lr=0.02)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.985, steps=30, dead_first=True)
    train(model, optimizer, 30, shape=(3, 8, 8))
    assert pruner.finished
    assert_masked(pruner)
    assert dead_in(pruner, 3, 8, 8) == 0


@pytest.mark.parametrize("options", [{"floor": 3}, {"floor": 0.05}, {"scope": "layer"}, {"scope": "layer", "floor": 3}])
def test_floors_and_scopes(options: dict[str, Any]) -> None:
    pruner, plain = (run(mlp(), "random", sparsity=0.92, dead_first=first, **options) for first in (True, False))
    assert_masked(pruner)
    assert pruner.nonzero == plain.nonzero == 28
    assert all(weight.kept >= floor for weight, floor in zip(pruner.weights, pruner.floors, strict=True))
    if "scope" in options:
        assert pruner.events[-1].kept == plain.events[-1].kept
    assert dead_in(pruner, 12) < dead_in(plain, 12)


def test_a_weight_that_goes_anyway_costs_nothing() -> None:
    """Where all weights are live, the choice is that of the scores alone."""
    first, plain = (run(mlp(), sparsity=0.3, dead_first=choice) for choice in (True, False))
    assert all(torch.equal(mask, plain.masks[name]) for name, mask in first.masks.items())


def test_a_pruning_at_step_0_is_by_score_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadFirstWarning)
        first, plain = (
            flipout.GlobalMagnitude(
                model, sgd(model), sparsity=0.5, steps=10, schedule=flipout.OneShot(0.5, 10, 0), dead_first=choice
            )
            for choice, model in ((True, mlp()), (False, mlp()))
        )
    assert all(torch.equal(mask, plain.masks[name]) for name, mask in first.masks.items())


def test_resuming_gives_the_same_bits() -> None:
    whole = run(mlp(), "flipout", sparsity=0.95)
    model = mlp()
    optimizer = sgd(model)
    pruner = make("flipout", model, optimizer, sparsity=0.95, dead_first=True)
    train(model, optimizer, 11)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    model = mlp(seed=1)
    optimizer = sgd(model)
    pruner = make("flipout", model, optimizer, sparsity=0.95, dead_first=True)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    pruner.load_state_dict(saved[2])
    train(model, optimizer, 40, skip=11)
    assert pruner.events == whole.events
    for one, other in zip(model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_setting_is_part_of_the_state() -> None:
    state = make("magnitude", mlp_a := mlp(), sgd(mlp_a), dead_first=True).state_dict()
    other = make("magnitude", mlp_b := mlp(), sgd(mlp_b))
    with pytest.raises(ValueError, match="dead_first"):
        other.load_state_dict(state)


@pytest.mark.parametrize("steps", [0, 11])
def test_a_copy_continues_on_its_own(steps: int) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make("magnitude", model, optimizer, sparsity=0.95, dead_first=True)
    train(model, optimizer, steps)
    copied: tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner] = copy.deepcopy((model, optimizer, pruner))
    pruner.remove()
    del model, optimizer, pruner
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadFirstWarning)
        train(copied[0], copied[1], 40, skip=steps)
    assert dead_in(copied[2], 12) == 0
    assert all(torch.equal(mask, run(mlp(), sparsity=0.95).masks[name]) for name, mask in copied[2].masks.items())


def test_no_hook_is_left_in_the_model() -> None:
    model = mlp()
    pruner = make("magnitude", model, sgd(model), dead_first=True)
    assert model._forward_pre_hooks
    with pytest.warns(flipout.UnfinishedWarning):
        pruner.remove()
    assert not model._forward_pre_hooks
    assert not run(mlp(), sparsity=0.9).model._forward_pre_hooks


def test_a_compiled_model() -> None:
    model = mlp()
    compiled = cast(nn.Module, torch.compile(model, backend="eager"))
    optimizer = sgd(model)
    pruner = make("magnitude", compiled, optimizer, sparsity=0.95, dead_first=True)
    train(compiled, optimizer, 40)
    assert all(torch.equal(mask, run(mlp(), sparsity=0.95).masks[name]) for name, mask in pruner.masks.items())


class Keywords(nn.Module):
    """Takes a tensor by keyword only, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, *, scale: Tensor | None = None, x: Tensor, number: int = 0) -> Tensor:
        return self.body(x if scale is None else x * scale) + number  # type: ignore[no-any-return]


def test_a_network_that_is_called_with_keywords() -> None:
    model = Keywords()
    optimizer = sgd(model)
    pruner = make("random", model, optimizer, sparsity=0.95, dead_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadFirstWarning)
        for x, y in batches(40):
            optimizer.zero_grad()
            cross_entropy(model(x=x, number=1), y).backward()
            optimizer.step()
    body = copy.deepcopy(model.body)
    for name, mask in pruner.masks.items():
        body.get_parameter(name.removeprefix("body.")).data = mask.float()
    assert pruner.nonzero == sum(pair[1] for pair in effective_weights(body, torch.randn(2, 12)).layers.values())


class Counting(nn.Module):
    """Takes a number beside the tensor."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.calls = body, 0

    def forward(self, x: Tensor, number: int = 0) -> Tensor:
        self.calls += 1
        return self.body(x) + number  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Makes a decision by the values of a tensor, which cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y if y.sum() > 0 else 2 * y


def test_a_network_that_cannot_be_recorded() -> None:
    model = Branching()
    optimizer = sgd(model)
    pruner = make("magnitude", model, optimizer, sparsity=0.95, dead_first=True)
    plain = run(mlp(), sparsity=0.95, dead_first=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, 40)
    found = [str(each.message) for each in caught if each.category is flipout.DeadFirstWarning]
    assert len(found) == 1
    assert "recorded" in found[0]
    assert "dead_first=False" in found[0]
    assert pruner.nonzero == plain.nonzero


@pytest.mark.parametrize(("args", "kwargs"), [((2,), {}), ((), {"number": 2})], ids=["number", "keyword"])
def test_any_arguments_of_a_call(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    model = Counting(mlp())
    optimizer = sgd(model)
    pruner = make("magnitude", model, optimizer, sparsity=0.95, dead_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadFirstWarning)
        for x, y in batches(40):
            optimizer.zero_grad()
            cross_entropy(model(x, *args, **kwargs), y).backward()
            optimizer.step()
    masks = {f"body.{name}": mask for name, mask in run(mlp(), sparsity=0.95).masks.items()}
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())


def test_a_model_that_is_not_called_itself() -> None:
    model = mlp()
    optimizer = sgd(model)
    make("magnitude", model, optimizer, sparsity=0.95, dead_first=True)
    with pytest.warns(flipout.DeadFirstWarning, match="dead_first"):
        train(nn.Sequential(*model), optimizer, 20)

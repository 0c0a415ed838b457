"""Parameters that are no longer the model's, or the optimizer's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import flipout
from tests.helpers import assert_masked, mlp, sgd, train, trained


def assign(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model.load_state_dict(mlp(seed=3).state_dict(), assign=True)


def new_parameter(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model.get_submodule("0").weight = nn.Parameter(torch.randn(16, 12))


def other_shape(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model.get_submodule("0").weight = nn.Parameter(torch.randn(8, 12))


def deleted(model: nn.Module, _: torch.optim.Optimizer) -> None:
    del model.get_submodule("0").weight


def emptied(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.clear()


def shortened(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[0]["params"][0]


@pytest.mark.parametrize("change", [assign, new_parameter, other_shape, deleted])
def test_a_replaced_parameter_is_an_error_at_the_next_step(change: Callable[..., None]) -> None:
    model, optimizer, pruner = trained()
    change(model, optimizer)
    with pytest.raises(RuntimeError, match=r"0\.weight .*assign=True.*new pruner"):
        optimizer.step()
    assert pruner.step == 20
    with pytest.warns(flipout.LostZerosWarning, match=r"0\.weight"):
        pruner.remove()


@pytest.mark.parametrize("change", [emptied, shortened])
def test_a_parameter_that_the_optimizer_has_dropped(change: Callable[..., None]) -> None:
    model, optimizer, _ = trained()
    change(model, optimizer)
    with pytest.raises(RuntimeError, match=r"optimizer .*0\.weight.*pruner\.remove\(\)"):
        optimizer.step()


def test_a_replaced_module_is_an_error_at_the_next_pruning() -> None:
    model, optimizer, pruner = trained(steps=3)
    assert isinstance(model, nn.Sequential)
    model[2] = nn.Linear(16, 8)
    with pytest.raises(RuntimeError, match=r"2\.weight was replaced"):
        train(model, optimizer, 6, skip=3)
    assert pruner.step < 6


def test_other_groups_and_loaded_optimizers_are_no_replacement() -> None:
    model, optimizer, pruner = trained(steps=5)
    other = nn.Parameter(torch.zeros(3))
    optimizer.param_groups.insert(0, {**optimizer.param_groups[0], "params": [other]})
    train(model, optimizer, 10, skip=5)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 20, skip=10)
    assert_masked(pruner)


def test_a_pruner_for_the_new_parameters_takes_over() -> None:
    """What the error recommends."""
    model, optimizer, pruner = trained(steps=9)
    reference, _, untouched = trained()
    moments = copy.deepcopy(optimizer.state_dict())
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    optimizer.zero_grad()
    again = sgd(model)
    again.load_state_dict(moments)
    other = flipout.GlobalMagnitude(model, again, sparsity=0.9, steps=20)
    other.load_state_dict(pruner.state_dict())
    pruner.remove()
    train(model, again, 20, skip=9)
    assert other.events == untouched.events
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))

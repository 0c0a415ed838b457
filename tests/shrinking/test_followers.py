"""Copies that follow a network that is shrunk."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flipout

from .perceptrons import EXAMPLE, STEPS, numbers, pruned, shapes, steps

pytestmark = pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning")


@pytest.mark.parametrize("saves", [True, False])
def test_old_values_of_an_average_do_not_come_back(saves: bool) -> None:
    """An average lags behind a pruning: at the shrink it is not zero yet where weights were just pruned."""
    ends = []
    for shrinks in (True, False):
        schedule = flipout.schedules.OneShot(0.95, 120, at=0.1)
        parts = model, _, pruner = pruned(schedule=schedule, steps=120)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        average.update_parameters(model)
        pruner.follow(average)
        for number in range(120):
            steps(parts, number, number + 1)
            average.update_parameters(model)
            if shrinks and number == 15:
                assert pruner.lost_zeros(average)
                pruner.shrink(EXAMPLE)
            if shrinks and saves and number == 20:
                with pruner.expanded():
                    pass
        pruner.expand()
        largest = max(
            float(average.module.get_parameter(n).detach()[~mask].abs().max()) for n, mask in pruner.masks.items()
        )
        assert largest < 1e-6
        ends.append(average(numbers(5)[0]).detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-4)


def test_a_copy_follows_once() -> None:
    parts = model, _, pruner = pruned()
    other = copy.deepcopy(model)
    pruner.follow(other)
    pruner.follow(other)
    for same in (model, torch.nn.Sequential(*other.children())):
        with pytest.raises(ValueError, match=r"^0\.weight of the copy"):
            pruner.follow(same)
    steps(parts, 0, STEPS)
    pruner.shrink(EXAMPLE)
    assert shapes(other) == shapes(model)
    pruner.expand()
    assert shapes(other) == shapes(model)


def test_a_whole_copy_is_not_compared_with_a_shrunk_network() -> None:
    """The mask of a layer of which one row is left would fit any number of rows."""
    parts = model, _, pruner = pruned()
    other = copy.deepcopy(model)
    steps(parts, 0, STEPS)
    pruner.shrink(EXAMPLE)
    for act in (pruner.apply_to, pruner.check, pruner.lost_zeros):
        with pytest.raises(ValueError, match=r"^0\.weight .*expanded.*pruner\.follow"):
            act(other)
    with pruner.expanded():
        pruner.apply_to(other)
        pruner.check(other)
    pruner.check(model)
    pruner.apply_to(copy.deepcopy(model))


def test_the_zeros_of_another_model_are_refused() -> None:
    pruner = pruned()[2]
    with pytest.raises(ValueError, match=r"0\.weight"):
        pruner.apply_to(torch.nn.Sequential(torch.nn.Linear(1, 32), *list(pruner.model)[1:]))  # type: ignore[call-overload]

"""Copies that follow a network that is shrunk."""

from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flipout

from .perceptrons import EXAMPLE, numbers, pruned, steps

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

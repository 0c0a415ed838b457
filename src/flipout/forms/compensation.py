"""The form of Optimal Brain Surgeon: in an event, the weights that stay make up for those that go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..events import Selection
from ..problems import Need
from ..runtime.work import Work
from ..statistics import InverseFisher
from .form import Form


class Compensation(Form):
    """Permanent pruning in which an event also changes the weights that stay, by the statistic `inverse_fisher`."""

    needs: ClassVar[Mapping[Need, str]] = {
        "own prune": "an event also changes the weights that stay",
        "whole weights": "a block of weights can lie on several ranks",
    }

    def apply(self, work: Work, selection: Selection) -> None:
        for weight, pruned in zip(work.weights, selection.prune, strict=True):
            statistic = weight.statistics["inverse_fisher"]
            assert isinstance(statistic, InverseFisher)
            weight.local.add_(statistic.compensation(weight.local, weight.mask & ~pruned))
        super().apply(work, selection)

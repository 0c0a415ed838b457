"""The settings of second chances, and the events that they add to a schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real

from ..schedules import Pruning

EVENTS = 150

LONGEST = 1.5
"""The masks are frozen at the latest when training has lasted this many times as long as until the last pruning.

Noise pushes every hidden value about, the more so while the learning rate is high. At an extreme sparsity it would in
the end choose the few weights that are kept. Where the prunings end early, the choice ends early too.
"""

BEFORE = 0.3
"""The time for which `calm` acts before the last pruning, as a share of the time until the masks are frozen."""


@dataclass(frozen=True)
class SecondChances:
    """The settings of second chances: pruned weights keep a hidden value that learns, and can come back for some time.

    At every pruning all weights are ranked by their hidden values: a pruned weight can come back, and a kept one can be
    pruned. In the model a pruned weight is exactly 0 outside `optimizer.step()`. At `until` the masks are frozen, the
    hidden values are dropped, and later prunings are permanent.

    Args:
        until: the share of training at which the masks are frozen, at the latest. If the prunings end early, the masks
            are frozen earlier: when training has lasted 1.5 times as long as until the last pruning.
        share: the most weights that can come back in one event, as a share of the kept weights. It falls to 0 along
            a cosine, so that the network comes to rest before the masks are frozen.
        rate: the factor for the gradient of pruned weights, so that they learn more slowly.
        trust: the largest norm of the gradient of an output channel, relative to the norm of its weights including
            hidden values. It limits channels that have lost nearly all of their weights; infinity is no limit.
        balance: whether the gradient of an output channel is multiplied by the square root of its density over that of
            its layer (SparseOpt, arXiv 2605.27541), if a batch norm follows. Batch norm has the opposite effect, so
            that the sparsest channels would take the largest steps. A channel without weights does not learn. A batch
            norm is taken to follow if the network has one with as many features as the layer has output channels. With
            `granularity="channel"` all channels of a layer have the same density, and nothing is balanced.
        smooth: whether kept weights are moved smoothly towards 0 by the threshold of their layer.
        calm: the largest learning rate, divided by 1 - momentum, while the last choices are made: from shortly before
            the last pruning until the masks are frozen. If the learning rate is larger, the gradients of prunable
            weights are made smaller by the ratio. That concerns SGD (0.1 with a momentum of 0.9 is 1). The learning
            rates of Adam are far below the limit. Infinity is no limit.
        events: how often the masks are chosen, at least, if they are chosen evenly until they are frozen. Prunings of
            the schedule count. Events between the prunings and after the last one do not change the number of weights.
    """

    until: float = 0.7
    share: float = 0.1
    rate: float = 0.5
    trust: float = 0.3
    balance: bool = True
    smooth: bool = True
    calm: float = 0.3
    events: int = EVENTS

    def __post_init__(self) -> None:
        if not isinstance(self.until, Real) or not 0 < self.until <= 1:
            raise ValueError(f"until is {self.until}; give a share of training above 0 and at most 1")
        if not isinstance(self.share, Real) or not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}; give a share of the kept weights between 0 and 1")
        if not isinstance(self.rate, Real) or not 0 <= self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; give a factor between 0 and 1 for pruned weights")
        if not isinstance(self.trust, Real) or not self.trust > 0:
            raise ValueError(f"trust is {self.trust}; give a number above 0, or math.inf for no limit")
        if not isinstance(self.calm, Real) or not self.calm > 0:
            raise ValueError(f"calm is {self.calm}; give a learning rate above 0, or math.inf for no limit")
        if not isinstance(self.events, Integral) or self.events < 1:
            raise ValueError(f"events is {self.events}; give a whole number of at least 1")

    def frozen_at(self, plan: Sequence[Pruning], steps: int) -> int:
        """The step after which the masks are frozen, for the prunings of a schedule."""
        return max(1, min(round(self.until * steps), round(LONGEST * plan[-1].step)))

    def calm_from(self, plan: Sequence[Pruning], steps: int) -> int:
        """The step from which on `calm` limits the learning rate, for the prunings of a schedule."""
        last = plan[-1].step
        return round(last - BEFORE * max(0, self.frozen_at(plan, steps) - last))

    def returning(self, step: int, frozen: int, keep: int) -> int:
        """The most weights that can come back in an event that keeps `keep` weights, if masks are frozen at a step."""
        progress = min(1.0, step / frozen)
        return round(self.share * keep * (1 + math.cos(math.pi * progress)) / 2)

    def extend(self, plan: Sequence[Pruning], steps: int) -> list[Pruning]:
        """Add events that choose the masks again to the prunings of a schedule, up to the step that freezes them."""
        if not plan:
            raise ValueError("second_chances= needs a schedule that prunes, but nothing is pruned: pass None")
        if any(pruning.sparsity is None for pruning in plan):
            raise ValueError("second_chances= needs a schedule with a sparsity for each pruning: pass None")
        frozen = self.frozen_at(plan, steps)
        if plan[0].step > frozen:
            raise ValueError(
                f"second_chances= ends at step {frozen:,} of {steps:,}, but the first pruning is at step "
                f"{plan[0].step:,}: raise until=, prune earlier, or pass second_chances=None"
            )
        if plan[0].step == 0:
            raise ValueError(
                "second_chances= needs a schedule that prunes during training, not before the first step, because "
                "hidden values are learned: choose another schedule, or pass second_chances=None"
            )
        interval = max(1.0, frozen / self.events)
        before = [pruning for pruning in plan if pruning.step <= frozen]
        extended = []
        for pruning, following in pairwise([*before, before[-1]._replace(step=frozen)]):
            gap = following.step - pruning.step
            events = max(1, round(gap / interval))
            extended += [pruning._replace(step=pruning.step + round(i * gap / events)) for i in range(events)]
        last = before[-1]._replace(step=frozen)
        if last.step > before[-1].step:
            extended.append(last)
        return extended + [pruning for pruning in plan if pruning.step > frozen]


def as_second_chances(choice: SecondChances | bool | None) -> SecondChances | None:
    """Second chances from what a user may pass: settings, True for the default settings, or None or False for none."""
    if choice is None or choice is False:
        return None
    if choice is True:
        return SecondChances()
    if not isinstance(choice, SecondChances):
        raise TypeError(f"second_chances is {choice!r}; give a flipout.SecondChances, True, or None")
    return choice

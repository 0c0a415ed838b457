"""Second chances: the settings under which pruned weights go on learning and may come back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real

from .schedules import Pruning
from .warnings import LongRevivalWarning

EVENTS = 150
EXTREME, LATE = 0.98, 0.6
"""From this sparsity on, prunings that end before this share of the time until the masks are frozen are warned of."""


@dataclass(frozen=True)
class Revival:
    """Pruned weights keep a hidden value that goes on learning, and can come back until a share of training.

    At every pruning all weights are ranked by their hidden values: a pruned weight can return, and a kept one can go.
    In the model a pruned weight is exactly 0 outside of `optimizer.step()`. At `until` the masks are frozen, the hidden
    values are dropped, and later prunings are for good.

    Args:
        until: the share of training at which the masks are frozen.
        share: the most weights that can come back in one event, as a share of those that are kept. It falls to 0 at
            `until` along a cosine, so that the network settles before the masks are frozen.
        rate: the factor for the gradient of pruned weights, so that they learn more slowly.
        trust: the largest norm of the gradient of a unit (an output channel), relative to the norm of its weights,
            hidden ones included. It holds channels that have lost nearly all of their weights; infinity is no limit.
        shrink: whether kept weights are shrunk smoothly towards the threshold of their layer.
        events: how often the masks are chosen, at least, if they are chosen evenly until `until`. Prunings of the
            schedule count. Between them, and from the last one on, the number of weights stays as it is.
    """

    until: float = 0.7
    share: float = 0.1
    rate: float = 0.5
    trust: float = 0.3
    shrink: bool = True
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
        if not isinstance(self.events, Integral) or self.events < 1:
            raise ValueError(f"events is {self.events}; choose the masks at least once")

    def frozen_at(self, steps: int) -> int:
        """The step after which the masks are frozen."""
        return max(1, round(self.until * steps))

    def returning(self, step: int, steps: int, keep: int) -> int:
        """The most weights that can come back in an event that keeps `keep` weights."""
        progress = min(1.0, step / self.frozen_at(steps))
        return round(self.share * keep * (1 + math.cos(math.pi * progress)) / 2)

    def extend(self, plan: Sequence[Pruning], steps: int) -> list[Pruning]:
        """Add events that choose the masks again to the prunings of a schedule, up to the step that freezes them."""
        frozen = self.frozen_at(steps)
        if any(pruning.nonzero is None for pruning in plan):
            raise ValueError("revival needs a schedule with a sparsity for each pruning: pass revival=None")
        if not plan or plan[0].step > frozen:
            first = f"the first pruning is at step {plan[0].step:,}" if plan else "nothing is pruned"
            raise ValueError(
                f"revival ends at step {frozen:,} of {steps:,}, but {first}: raise until=, prune earlier, or "
                "pass revival=None"
            )
        if plan[0].step == 0:
            raise ValueError(
                "revival needs a schedule that prunes during training, not before the first step, because "
                "hidden values are learned: choose another schedule, or pass revival=None"
            )
        interval = max(1.0, frozen / self.events)
        before = [pruning for pruning in plan if pruning.step <= frozen]
        extended = []
        for pruning, following in pairwise([*before, before[-1]._replace(step=frozen)]):
            gap = following.step - pruning.step
            parts = max(1, round(gap / interval))
            extended += [pruning._replace(step=pruning.step + round(i * gap / parts)) for i in range(parts)]
        last = before[-1]._replace(step=frozen)
        if last.step > before[-1].step:
            extended.append(last)
        return extended + [pruning for pruning in plan if pruning.step > frozen]


def warn_of_long_revival(revival: Revival, plan: Sequence[Pruning], steps: int) -> None:
    """Warn if a network is kept at an extreme sparsity for long while weights come and go.

    Every hidden value is pushed about by the noise of the gradients, and the larger the steps, the further. In the end
    noise decides which few weights are kept. (LeNet-300-100 at 99.9 %, 30 epochs, prunings until 50, 35 and 20 % of
    training and masks frozen at 70 %: 92, 46 and 25 % on held-out data.)
    """
    last, frozen = plan[-1], revival.frozen_at(steps)
    if (last.sparsity or 0.0) >= EXTREME and last.step < LATE * frozen:
        warnings.warn(
            f"the last pruning is at step {last.step:,}, and weights can come back until step {frozen:,}. For so long "
            f"at a sparsity of {last.sparsity:.2%}, a network may collapse. End the prunings later (window=), freeze "
            f"the masks at {last.step / LATE / steps:.2g} of training (until=), or prune for good with revival=None",
            LongRevivalWarning,
            stacklevel=4,
        )


def as_revival(revival: Revival | bool | None) -> Revival | None:
    """Revival from what a user may pass: settings, True for the default settings, or None or False for none."""
    if revival is None or revival is False:
        return None
    if revival is True:
        return Revival()
    if not isinstance(revival, Revival):
        raise TypeError(f"revival is {revival!r}; give a flipout.Revival, True, or None")
    return revival

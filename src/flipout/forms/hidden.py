"""Second chances: pruned weights keep a hidden value that learns, and can come back.

Outside of `optimizer.step()` the model holds what the network computes with: 0 where a weight is pruned, and a kept
weight `w` moved smoothly towards 0 by the threshold `t` of its layer to `sgn(w) * (w^4 - t^4)^(1/4)`. So a weight comes
back with a small value and goes with a small value, and a large weight stays as it is. The hidden value of a weight `s`
that is not 0 in the model follows from it: `sgn(s) * (s^4 + t^4)^(1/4)`. Only the others need memory. (Feather, Glentis
Georgoulakis et al., 2023, uses a power of 3. A fourth root is two square roots.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..events import Selection
from ..kernels import step_loops
from ..kernels.step_loops import in_c
from ..numerics import kept, masked, wide
from ..runtime.gradients import restored
from ..runtime.groups import Gathered, Group
from ..runtime.noise import add_noise
from ..runtime.optimizer_state import clear_state
from ..runtime.work import Work
from ..schedules import Pruning
from ..views import View
from ..weights import Weight, count_weights
from .form import Form

BELOW, ABOVE = 0.999, 1.05
"""The threshold of a layer lies just below its smallest kept weight, so that no kept weight is exactly 0. Its ceiling
lies just above its largest pruned weight."""

EVENTS = 150

LONGEST = 1.5
"""The masks are frozen at the latest when training has lasted this many times as long as until the last pruning.

Noise pushes every hidden value about, the more so while the learning rate is high. At an extreme sparsity it would in
the end choose the few weights that are kept. Where the prunings end early, the choice ends early too.
"""

CALM_FROM = 0.8
"""The share of the time between the first and the last pruning after which gradients are multiplied with `calm`."""


@dataclass(frozen=True)
class SecondChances:
    """The settings of second chances: pruned weights keep a hidden value, and can come back until a share of training.

    At every pruning all weights are ranked by their hidden values: a pruned weight can return, and a kept one can go.
    In the model a pruned weight is exactly 0 outside of `optimizer.step()`. At `until` the masks are frozen, the hidden
    values are dropped, and later prunings are permanent.

    Args:
        until: the share of training at which the masks are frozen, at the latest. They are frozen earlier where the
            prunings end early: when training has lasted 1.5 times as long as until the last pruning.
        share: the most weights that can come back in one event, as a share of those that are kept. It falls to 0 along
            a cosine, so that the network comes to rest before the masks are frozen.
        rate: the factor for the gradient of pruned weights, so that they learn more slowly.
        trust: the largest norm of the gradient of a unit (an output channel), relative to the norm of its weights,
            hidden ones included. It holds channels that have lost nearly all of their weights; infinity is no limit.
        balance: whether the gradient of a unit is multiplied by the square root of its density over that of its layer
            (SparseOpt, arXiv 2605.27541), if a batch norm follows. Batch norm multiplies the gradient of a sparse
            channel with the inverse of it, so that the sparsest channels would take the largest steps. A unit without
            weights does not learn. A batch norm is taken to follow if the network has one with as many features as
            the layer has units. With `granularity="channel"` all units of a layer have the same density, and nothing
            is balanced.
        smooth: whether kept weights are moved smoothly towards 0 by the threshold of their layer.
        calm: the factor for all gradients of the weights that are pruned, while the last choices are made: from 80 % of
            the prunings on, until the masks are frozen. For SGD it is a lower learning rate. It is not meant for Adam.
        events: how often the masks are chosen, at least, if they are chosen evenly until they are frozen. Prunings of
            the schedule count. Between them, and from the last one on, the number of weights stays as it is.
    """

    until: float = 0.7
    share: float = 0.1
    rate: float = 0.5
    trust: float = 0.3
    balance: bool = True
    smooth: bool = True
    calm: float = 1.0
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
        if not isinstance(self.calm, Real) or not 0 < self.calm <= 1:
            raise ValueError(f"calm is {self.calm}; give a factor above 0 and at most 1 for gradients")
        if not isinstance(self.events, Integral) or self.events < 1:
            raise ValueError(f"events is {self.events}; choose the masks at least once")

    def frozen_at(self, plan: Sequence[Pruning], steps: int) -> int:
        """The step after which the masks are frozen, for the prunings of a schedule."""
        return max(1, min(round(self.until * steps), round(LONGEST * plan[-1].step)))

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


@in_c(step_loops.enter)
def enter(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    """Replace what the network computes with by the hidden values of all weights, in place."""
    shown = wide(weight)
    size = (shown.square().square_() + threshold.square().square()).sqrt_().sqrt_()
    weight.copy_(torch.where((shown != 0) & kept(mask), size.copysign_(shown), wide(values)))


@in_c(step_loops.leave)
def leave(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    """Replace the hidden values by what the network computes with, in place; `values` keeps what that does not show.

    While a weight is out, the network does not react to it, so its gradient does not fall as it grows. Without a
    ceiling, many weights would pass the threshold together before the masks are chosen again, and come back far too
    large. With it, they come back with a small value, and the network reacts.
    """
    full = wide(weight)
    size = (full.square().square_() - threshold.square().square()).clamp_min_(0).sqrt_().sqrt_()
    shown = masked(size.copysign_(full).to(weight.dtype), mask)
    limited = torch.maximum(torch.minimum(full, ceiling), -ceiling)
    values.copy_(torch.where(shown == 0, torch.where(kept(mask), full, limited), 0))
    weight.copy_(shown)


@in_c(step_loops.limit_gradient)
def limit_gradient(
    weight: Tensor, grad: Tensor, mask: Tensor, faint: Tensor, rate: Tensor, trust: Tensor, factor: Tensor
) -> None:
    """Multiply the gradient of pruned weights with a rate, and shorten the gradient of each unit that is too long.

    A unit is everything under one index of the first dimension: the weights of an output channel. Its gradient is at
    most `trust` times as long as its weights, hidden ones included (adaptive gradient clipping, Brock et al., 2021).
    Batch norm divides by the deviation of a channel, so the gradient of a channel that has lost nearly all of its
    weights is hundreds of times too long. Without a limit such channels throw their hidden values about, come back by
    accident, and take the place of others until whole layers are dead. A gradient of a pruned weight that is not finite
    counts as 0, because the network does not depend on it. Faint gradients have a factor of their own, `faint`. At last
    the gradient of each unit is multiplied with `factor`, a number for each unit or one for all.
    """
    scaled = restored(wide(grad), mask, faint, rate)
    shorten(grad, scaled, _squares(wide(weight)).sqrt(), _squares(scaled).sqrt(), trust, factor)


@in_c(step_loops.scale_pruned)
def scale_pruned(grad: Tensor, mask: Tensor, faint: Tensor, rate: Tensor) -> None:
    """Multiply the gradient of pruned weights with a rate."""
    grad.copy_(restored(wide(grad), mask, faint, rate))


def shorten(grad: Tensor, scaled: Tensor, size: Tensor, length: Tensor, trust: Tensor, factor: Tensor) -> None:
    """Write a scaled gradient of a certain length into `grad`, at most `trust` times as long as the size of its unit,
    and then times `factor`.

    The least size is that of Brock et al.
    """
    allowed = trust * size.clamp_min(1e-3)
    grad.copy_(scaled * (torch.where(length > allowed, allowed / length, 1) * factor))


def balance(group: Group, widths: Collection[int]) -> Tensor:
    """For each unit the square root of its density over that of its layer, broadcast over the elements of the group.

    It is 1 for layers with another number of units than `widths` has, and for layers without weights, so that they can
    come back.
    """
    mask, view = group.mask.to(torch.float32), group.weights[0].view
    if view.spread:  # other ranks hold more of the same units
        left, size = view.sum_of_rows(torch.stack([_sums(mask), _sums(torch.ones_like(mask))]))
    else:
        left, size = group.sums_of_units(mask), group.sums_of_units(torch.ones_like(mask))
    densities = [
        weight.kept / weight.size if weight.size and weight.view.positions.shape[0] in widths else 0.0
        for weight in group.weights
    ]
    density = group.spread(torch.tensor(densities, device="cpu").to(mask.device))
    return torch.where(density > 0, left / size / density, 1).sqrt()


def _sums(tensor: Tensor) -> Tensor:
    """The sum of each unit, in a shape that is broadcast over it."""
    return tensor.sum(tuple(range(1, tensor.ndim)), keepdim=True)


def _squares(tensor: Tensor) -> Tensor:
    return _sums(tensor.square())


class Hidden(Form):
    """The form of second chances: what is trained is the hidden value of every weight, kept or pruned.

    Args:
        settings: the settings of second chances.
        widths: the numbers of units of the layers whose gradients are balanced.
    """

    shared = ("threshold", "ceiling")
    entering = staticmethod(enter)
    leaving = staticmethod(leave)

    calm_from: int
    """The step from which on gradients are multiplied with `calm`; known once the prunings are planned."""
    frozen_at: int
    """The step after which the masks are frozen; known once the prunings are planned."""

    def __init__(self, settings: SecondChances, widths: Collection[int] = ()) -> None:
        self.chances = settings
        self._widths = widths if settings.balance else ()
        self._balances: WeakKeyDictionary[Group, Tensor] = WeakKeyDictionary()  # as long as the masks are the same

    def start(self, work: Work) -> None:
        """Hidden values begin with the first event."""

    def slots(self, weight: Weight) -> dict[str, Tensor]:
        """For each weight that is 0 in the model its hidden value, and 0 for the others; the threshold that moves kept
        weights, 0 for none; and the largest size that the hidden value of a pruned weight can grow to before the masks
        are chosen again."""
        local = weight.local.detach()
        threshold, ceiling = (wide(local.new_zeros(())) for _ in range(2))
        return {"values": torch.zeros_like(local), "threshold": threshold, "ceiling": ceiling}

    def active(self, weight: Weight) -> bool:
        return bool(weight.slots)

    def learns_pruned(self, weight: Weight) -> bool:
        return bool(weight.slots)

    def gradients(self, work: Work, step: int, scale: Tensor | float) -> None:
        if not work.weights[0].slots:
            super().gradients(work, step, scale)
            return
        for group in work.groups:
            if (grads := group.load_grads()) is None:
                continue
            if work.noise is not None and work.noise.scale > 0:
                add_noise(work.noise, work.kernels, group, grads, step, scale, hidden=True)
            self._limit(work, group, grads, scale, self.chances.calm if step >= self.calm_from else 1.0)
            group.store_grads()

    def settle(self, work: Work, step: int) -> None:
        """As always; and `.grad` holds what the network depends on again, because people look at it after a step."""
        super().settle(work, step)
        if work.weights[0].slots:
            for group in work.groups:
                if not group.dense:
                    group.zero_grads()

    def _limit(self, work: Work, group: Group, grads: Tensor, scale: Tensor | float, calm: float) -> None:
        number, device = work.kernels.number, grads.device
        rate = number(self.chances.rate, device)
        trust = number(self.chances.trust, device) * (scale.to(device) if isinstance(scale, Tensor) else scale)
        factors = [self.chances.rate * work.gradients.factor(weight) for weight in group.weights]
        if len(set(factors)) == 1:
            faint = number(factors[0], device)
        else:  # some gradients were set without a backward pass
            faint = group.spread([number(factor, device) for factor in factors])
        factor = number(calm, device)
        if self._widths:
            if group not in self._balances:
                self._balances[group] = balance(group, self._widths)
            factor = self._balances[group] * calm if calm < 1 else self._balances[group]
        if group.weights[0].view.spread:
            _limit_shard(group, grads, faint, rate, trust, factor)
        elif isinstance(group, Gathered):
            self._limit_gathered(work, group, grads, faint, rate, trust, factor)
        else:
            work.kernels.run(limit_gradient, group, group.values, grads, group.mask, faint, rate, trust, factor)

    def _limit_gathered(
        self,
        work: Work,
        group: Gathered,
        grads: Tensor,
        faint: Tensor,
        rate: Tensor,
        trust: Tensor,
        factor: Tensor,
    ) -> None:
        """`limit_gradient` for several weights: their units do not follow the rows of the group."""
        group.load()
        work.kernels.run(scale_pruned, group, grads, group.mask, faint, rate)
        size, length = (group.sums_of_units(wide(each).square()) for each in (group.values, grads))
        work.kernels.run(shorten, group, grads, grads, size.sqrt_(), length.sqrt_(), trust, factor)

    def plan(self, prunings: Sequence[Pruning], steps: int) -> list[Pruning]:
        extended = self.chances.extend(prunings, steps)
        self.frozen_at = self.chances.frozen_at(prunings, steps)
        first, last = prunings[0].step, prunings[-1].step
        self.calm_from = first + round(CALM_FROM * (last - first))
        return extended

    def permanent(self, step: int) -> bool:
        return step >= self.frozen_at

    def ranks_pruned(self, step: int) -> bool:
        return step <= self.frozen_at

    def returning(self, step: int, keep: int) -> int:
        return self.chances.returning(step, self.frozen_at, keep)

    def apply(self, work: Work, selection: Selection) -> None:
        """Change the masks and the thresholds. Hidden values stay as they are, with their momentum."""
        if not selection.grow:  # an event after the masks were frozen
            super().apply(work, selection)
            return
        begins = not work.weights[0].slots
        for number, weight in enumerate(work.weights):
            weight.mask ^= selection.prune[number]
            weight.mask |= selection.grow[number]
            if begins:
                weight.slots.update(self.slots(weight))
        if begins:
            work.forget()
            self._entered = list(work.groups)  # the weights are their own hidden values
            for group in work.groups:
                self._slots_of(group)  # shares their memory
        for weight in work.weights:
            # In half precision a weight that was moved does not determine its hidden value.
            smooth = self.chances.smooth and weight.parameter.element_size() >= 4
            set_limits(weight.slots, weight.local, weight.mask, weight.view, smooth=smooth)
        count_weights(work.weights)
        self._balances.clear()

    def freeze(self, work: Work) -> None:
        """Forget the hidden values, and the optimizer's state of the pruned weights."""
        if work.weights[0].slots:
            for weight in work.weights:
                weight.slots.clear()
                clear_state(work.optimizer, weight, weight.mask)
            work.forget()

    def settings(self) -> dict[str, object]:
        return {"form": type(self).__name__, "second_chances": self.chances}

    def saved(self, weight: Weight) -> dict[str, Tensor]:
        return weight.slots or self.slots(weight)

    def load(self, work: Work, saved: Mapping[str, Mapping[str, Tensor]], step: int, events: int) -> None:
        for weight in work.weights:
            weight.slots.clear()
            if events and not self.permanent(step):
                weight.slots.update(self.slots(weight))
        work.forget()
        self._balances.clear()
        super().load(work, saved, step, events)


def set_limits(slots: Mapping[str, Tensor], local: Tensor, mask: Tensor, view: View, *, smooth: bool) -> None:
    """Set the threshold and the ceiling of a weight, from its hidden values in `local` and a boolean mask.

    They are those of the whole weight, over all ranks. The threshold is 0 if the weight keeps nothing, and without
    `smooth`.
    """
    sizes = wide(local).abs()
    if local.numel():
        smallest, largest = sizes.masked_fill(~mask, torch.inf).amin(), sizes.masked_fill_(mask, 0).amax()
    else:
        smallest, largest = sizes.new_full((), torch.inf), sizes.new_zeros(())
    if view.key is not None:
        negative, largest = view.max(torch.stack([-smallest, largest]))
        smallest = -negative
    slots["threshold"].copy_(torch.where(smallest.isfinite(), smallest, 0) * (BELOW if smooth else 0))
    slots["ceiling"].copy_(largest * ABOVE)


def _limit_shard(group: Group, grads: Tensor, faint: Tensor, rate: Tensor, trust: Tensor, factor: Tensor) -> None:
    """`limit_gradient` for a shard, if other ranks hold more of the same units."""
    weight, mask, view = group.values, group.mask, group.weights[0].view
    scaled = restored(wide(grads), mask, faint, rate)
    size, length = view.sum_of_rows(torch.stack([_squares(wide(weight)), _squares(scaled)])).sqrt()
    shorten(grads, scaled, size, length, trust, factor)

"""Second chances: pruned weights keep a hidden value that learns, and can come back.

Outside of `optimizer.step()` the model holds what the network computes with: 0 where a weight is pruned, and a kept
weight `w` moved smoothly towards 0 by the threshold `t` of its layer to `sgn(w) * (w^4 - t^4)^(1/4)`. So a weight comes
back with a small value and goes with a small value, and a large weight stays as it is. The hidden value of a weight `s`
that is not 0 in the model follows from it: `sgn(s) * (s^4 + t^4)^(1/4)`. Only the others need memory. (Feather, Glentis
Georgoulakis et al., 2023, uses a power of 3. A fourth root is two square roots.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from .second_chances import SecondChances

BELOW, ABOVE = 0.999, 1.05
"""The threshold of a layer lies just below its smallest kept weight, so that no kept weight is exactly 0. Its ceiling
lies just above its largest pruned weight."""


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


def slowed(optimizer: torch.optim.Optimizer, limit: float) -> dict[Tensor, Tensor]:
    """The parameters whose learning rate, divided by 1 - momentum, is above a limit, with the limit over that."""
    factors: dict[Tensor, Tensor] = {}
    for group in optimizer.param_groups:
        rate, highest = group.get("lr"), limit * (1 - (group.get("momentum") or 0.0))
        if isinstance(rate, Tensor):  # reading it would wait for the accelerator
            factor = (highest / rate.detach().float().view(())).clamp(max=1.0)
            factors |= dict.fromkeys(group["params"], factor)
        elif rate is not None and rate > highest and group["params"]:
            factor = torch.full((), highest / rate, dtype=torch.float32, device=group["params"][0].device)
            factors |= dict.fromkeys(group["params"], factor)
    return factors


def balance(group: Group, features: Collection[int]) -> Tensor:
    """For each unit the square root of its density over that of its layer, broadcast over the elements of the group.

    It is 1 for layers whose number of units is not in `features`, and for layers without weights, so that they can come
    back.
    """
    mask, view = group.mask.to(torch.float32), group.weights[0].view
    if view.spread:  # other ranks hold more of the same units
        left, size = view.sum_of_rows(torch.stack([_sums(mask), _sums(torch.ones_like(mask))]))
    else:
        left, size = group.sums_of_units(mask), group.sums_of_units(torch.ones_like(mask))
    densities = [
        weight.kept / weight.size if weight.size and weight.view.positions.shape[0] in features else 0.0
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
        features: the numbers of features of batch norms: layers with so many units are balanced.
    """

    shared = ("threshold", "ceiling")
    entering = staticmethod(enter)
    leaving = staticmethod(leave)

    calm_from: int
    """The step from which on `calm` limits the learning rate; known once the prunings are planned."""
    frozen_at: int
    """The step after which the masks are frozen; known once the prunings are planned."""

    def __init__(self, settings: SecondChances, features: Collection[int] = ()) -> None:
        self.chances = settings
        self._features = features if settings.balance else ()
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
        slower = slowed(work.optimizer, self.chances.calm) if step >= self.calm_from else {}
        for group in work.groups:
            if (grads := group.load_grads()) is None:
                continue
            if work.noise is not None and work.noise.scale > 0:
                add_noise(work.noise, work.kernels, group, grads, step, scale, hidden=True)
            self._limit(work, group, grads, scale, slower)
            group.store_grads()

    def settle(self, work: Work, step: int) -> None:
        """As always; and `.grad` holds what the network depends on again, because people look at it after a step."""
        super().settle(work, step)
        if work.weights[0].slots:
            for group in work.groups:
                if not group.dense:
                    group.zero_grads()

    def _limit(
        self, work: Work, group: Group, grads: Tensor, scale: Tensor | float, slower: Mapping[Tensor, Tensor]
    ) -> None:
        number, device = work.kernels.number, grads.device
        rate = number(self.chances.rate, device)
        trust = number(self.chances.trust, device) * (scale.to(device) if isinstance(scale, Tensor) else scale)
        factors = [self.chances.rate * work.gradients.factor(weight) for weight in group.weights]
        if len(set(factors)) == 1:
            faint = number(factors[0], device)
        else:  # some gradients were set without a backward pass
            faint = group.spread([number(factor, device) for factor in factors])
        factor = number(1.0, device)
        if self._features:
            if group not in self._balances:
                self._balances[group] = balance(group, self._features)
            factor = self._balances[group]
        if any(weight.parameter in slower for weight in group.weights):
            slowness = [slower.get(weight.parameter, number(1.0, device)).to(device) for weight in group.weights]
            factor = factor * group.spread(slowness)
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
        self.calm_from = self.chances.calm_from(prunings, steps)
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

"""The form of Deep-R: every weight has a fixed sign, and one that would change it goes dormant for another to wake."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..numerics import zero_pruned
from ..problems import Need
from ..random_numbers import normal, uniform
from ..ranking.host_numbers import read_integers
from ..runtime.optimizer_state import clear_state, group_of
from ..runtime.work import Work
from ..weights import Weight
from .form import Form


class FixedSigns(Form):
    """A connection whose weight would change its sign becomes dormant, and a random dormant one becomes active.

    It starts with weight 0, without momentum. Gradients get an L1 pull `l1 * sign` and noise of deviation
    `sqrt(2 T / lr)`.

    Args:
        l1: pull of the weights towards zero.
        temperature: temperature T of the noise; `lr * l1^2 / 18` by default.
        seed: the seed of the noise and of what becomes active.
        per_layer: whether a connection becomes active in the same weight tensor; otherwise in the whole network.
    """

    needs: ClassVar[dict[Need, str]] = {
        "whole weights": "it chooses from all dormant connections at every step",
        "whole network": "a connection of any channel can become active until the end of training",
        "own choice": "it chooses single weights to prune and to grow",
        "own form": "it decides itself what happens to pruned weights",
    }

    def __init__(self, l1: float, temperature: float | None, seed: int, *, per_layer: bool) -> None:
        self.l1, self.temperature, self.seed, self.per_layer = l1, temperature, seed, per_layer
        self._floors: Sequence[int] = ()

    def keep_floors(self, floors: Sequence[int]) -> None:
        """The least number of active connections of each weight."""
        self._floors = floors

    def slots(self, weight: Weight) -> dict[str, Tensor]:
        """The sign of each connection: that of its initial weight, or a random one if that is 0.

        Called again, it keeps the sign of what is 0 by then: dormant connections keep the sign they started with.
        """
        local = weight.local.detach()
        sign = weight.slots.get("signs")
        if sign is None:
            place = weight.view.positions
            drawn = uniform(place, seed=self.seed, step=-1, tensor=weight.number, device=local.device) - 0.5
            sign = drawn.sign().to(torch.int8)
        return {"signs": torch.where(local != 0, local.sign().to(torch.int8), sign)}

    def permanent(self, step: int) -> bool:
        return False

    def gradients(self, work: Work, step: int, scale: Tensor | float) -> None:
        for weight in work.weights:
            if (grad := weight.grad) is not None:
                pull = self._pull(work, weight, grad, step)
                grad += pull * (scale.to(grad.device) if isinstance(scale, Tensor) else scale)
                zero_pruned(grad, weight.bytes)

    def _pull(self, work: Work, weight: Weight, grad: Tensor, step: int) -> Tensor:
        group = group_of(work.optimizer, weight.parameter)
        rate, pull = float(group["lr"]), -self.l1 if group.get("maximize") else self.l1
        temperature = rate * self.l1**2 / 18 if self.temperature is None else self.temperature
        deviation = math.sqrt(2 * temperature / rate) if rate else 0.0
        noise = normal(weight.view.positions, seed=self.seed, step=step, tensor=weight.number, device=grad.device)
        return noise * deviation + weight.slots["signs"] * pull

    def settle(self, work: Work, step: int) -> None:
        weights = work.weights
        had = [weight.kept for weight in weights]
        survivors = [weight.mask & (weight.local * weight.slots["signs"] >= 0) for weight in weights]
        finite = [torch.isfinite(weight.local).logical_or_(~weight.mask).all() for weight in weights]
        read = read_integers([*finite, *map(torch.count_nonzero, survivors)])  # one transfer, not one for each weight
        for weight, good in zip(weights, read, strict=False):
            if not good:  # NaN would count as a change of sign
                raise FloatingPointError(
                    f"{weight.name} has NaN or infinite weights at step {step}. Check for a loss that diverged (lower "
                    "the learning rate, clip gradients)"
                )
        has = read[len(weights) :]
        for weight, survivor, count in zip(weights, survivors, has, strict=True):
            weight.mask.copy_(survivor)
            weight.zero()
            weight.kept = count
        if has == had:
            return
        least = had if self.per_layer else self._floors
        owed = [max(0, a - b) for a, b in zip(least, has, strict=True)]
        for weight, number in zip(weights, owed, strict=True):
            self._activate([weight], number, step)
        self._activate(weights, sum(had) - sum(has) - sum(owed), step)
        for weight, survivor in zip(weights, survivors, strict=True):
            clear_state(work.optimizer, weight, survivor)

    def _activate(self, weights: Sequence[Weight], number: int, step: int) -> None:
        """Activate `number` dormant connections of these weights, chosen uniformly at random."""
        if not number:
            return
        dormant = [weight.size - weight.kept for weight in weights]
        chance = random.Random(f"{self.seed} {step} {weights[0].name} {len(weights)}")
        drawn = torch.tensor(chance.sample(range(sum(dormant)), number), device="cpu")
        for weight, available in zip(weights, dormant, strict=True):
            here = drawn[(drawn >= 0) & (drawn < available)]
            drawn -= available
            if not len(here):
                continue
            # The place of the n-th dormant connection: `nonzero` would wait for the device.
            through = (~weight.mask).flatten().cumsum(0)
            flat = torch.zeros(weight.mask.numel(), dtype=torch.bool, device=through.device)
            flat[torch.searchsorted(through, (here + 1).to(through.device))] = True
            weight.mask |= flat.view(weight.mask.shape)
            weight.kept += len(here)

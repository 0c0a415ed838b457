"""Deep-R: a fixed number of connections that rewire themselves while the network trains."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..layers import Layer
from ..pruner import Pruner
from ..random_numbers import normal, uniform
from ..runtime.optimizer_state import clear_state
from ..schedules import OneShot
from ..selection.host_numbers import read_integers
from .options import CommonOptions
from .registry import register


@register("deep-r", title="Deep-R", about="a constant number of connections that rewire", colour="#56b4e9")
class DeepR(Pruner):
    """Deep-R (Bellec et al., 2018): the sparsity is constant from the start, and each connection has a fixed sign.

    A connection whose weight would change its sign becomes dormant, and a random dormant connection becomes active with
    weight 0 (in the same layer with `scope="layer"`) and without momentum. Gradients get an L1 pull `l1 * sign` and
    noise of deviation `sqrt(2 T / lr)`. With plain SGD this is the update of the Deep-R paper,
    `theta <- theta - lr * (dE/dtheta + l1) + sqrt(2 lr T) * nu`.

    Which connections start dormant is random, and is decided when the pruner is attached. Weights that are loaded after
    that, before the first step, determine the signs; the dormant ones among them are zeroed by the first step.

        pruner = flipout.DeepR(model, optimizer, sparsity=0.99, steps=steps, l1=1e-4)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of dormant connections.
        steps: the number of optimizer steps of the whole training.
        l1: pull of the weights towards zero.
        temperature: temperature T of the noise; `lr * l1^2 / 18` by default.
        options: see `Pruner`.
    """

    refuses_shards = (
        "it chooses from all dormant connections at every step. Use flipout.RigL, which keeps the sparsity constant "
        "too, or train with DistributedDataParallel"
    )
    needs_whole_network = "a connection of any channel can be activated until the end of training"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        l1: float = 1e-4,
        temperature: float | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        if not 0 <= l1 < math.inf or not 0 <= (temperature or 0) < math.inf:
            raise ValueError(f"l1 is {l1}, temperature is {temperature}; give numbers of at least 0")
        if options.get("noise") is not None:
            raise ValueError("Deep-R has its own noise; set temperature= instead of noise=")
        self.l1, self.temperature = l1, temperature
        self.signs: dict[str, Tensor] = {}
        schedule = OneShot(sparsity, steps, at=0)
        super().__init__(model, optimizer, criterion=criteria.random, schedule=schedule, **options)

    @classmethod
    def chooses_single_weights(cls) -> bool:
        return True

    @property
    def regrows(self) -> bool:
        return True

    def start(self) -> None:
        """Fix the sign of each connection to that of its initial weight, or a random one if that is 0.

        Called again, it keeps the sign of what is 0 by then: dormant connections keep the sign they started with.
        """
        for layer in self.layers:
            weight = layer.weight.detach()
            if layer.name not in self.signs:
                drawn = (
                    uniform(layer.positions, seed=self.seed, step=-1, tensor=layer.number, device=weight.device) - 0.5
                )
                self.signs[layer.name] = drawn.sign().to(torch.int8)
            sign = self.signs[layer.name]
            sign.copy_(torch.where(weight != 0, weight.sign().to(torch.int8), sign))

    def change_gradients(self, scale: Tensor | float) -> None:
        for layer in self.layers:
            if (grad := layer.weight.grad) is not None:
                grad += self._pull(layer, grad) * (scale.to(grad.device) if isinstance(scale, Tensor) else scale)
                layer.clear(grad)

    def _pull(self, layer: Layer, grad: Tensor) -> Tensor:
        group = next(g for g in self.optimizer.param_groups if any(p is layer.weight for p in g["params"]))
        rate, pull = float(group["lr"]), -self.l1 if group.get("maximize") else self.l1
        temperature = rate * self.l1**2 / 18 if self.temperature is None else self.temperature
        deviation = math.sqrt(2 * temperature / rate) if rate else 0.0
        noise = normal(layer.positions, seed=self.seed, step=self.step, tensor=layer.number, device=grad.device)
        return noise * deviation + self.signs[layer.name] * pull

    def settle(self) -> None:
        had = [layer.kept for layer in self.layers]
        survivors = [layer.mask & (layer.weight * self.signs[layer.name] >= 0) for layer in self.layers]
        finite = [torch.isfinite(layer.weight).logical_or_(~layer.mask).all() for layer in self.layers]
        read = read_integers([*finite, *map(torch.count_nonzero, survivors)])  # one transfer, not one for each layer
        for layer, good in zip(self.layers, read, strict=False):
            if not good:
                raise self.not_finite(layer, "weights")  # NaN would count as a change of sign
        has = read[len(self.layers) :]
        if has == had:
            for layer in self.layers:
                layer.zero()
            return
        for layer, survivor, count in zip(self.layers, survivors, has, strict=True):
            layer.mask.copy_(survivor)
            layer.zero()
            layer.kept = count
        least = had if self.scope == "layer" else self.floors
        owed = [max(0, a - b) for a, b in zip(least, has, strict=True)]
        for layer, number in zip(self.layers, owed, strict=True):
            self._wake([layer], number)
        self._wake(self.layers, sum(had) - sum(has) - sum(owed))
        for layer, survivor in zip(self.layers, survivors, strict=True):
            clear_state(self.optimizer, layer.weight, survivor.view(torch.uint8))

    def _wake(self, layers: list[Layer], number: int) -> None:
        """Activate `number` dormant connections of these layers, chosen uniformly at random."""
        if not number:
            return
        dormant = [layer.mask.numel() - layer.kept for layer in layers]
        chance = random.Random(f"{self.seed} {self.step} {layers[0].name} {len(layers)}")
        drawn = torch.tensor(chance.sample(range(sum(dormant)), number), device="cpu")
        for layer, available in zip(layers, dormant, strict=True):
            here = drawn[(drawn >= 0) & (drawn < available)]
            drawn -= available
            if not len(here):
                continue
            # The place of the n-th dormant connection: `nonzero` would wait for the device.
            through = (~layer.mask).flatten().cumsum(0)
            flat = torch.zeros(layer.mask.numel(), dtype=torch.bool, device=through.device)
            flat[torch.searchsorted(through, (here + 1).to(through.device))] = True
            layer.mask |= flat.view(layer.mask.shape)
            layer.kept += len(here)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"l1": self.l1, "temperature": self.temperature}

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        return {"signs": self.signs}

    def load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, sign in self.signs.items():
            sign.copy_(extra["signs"][name])

"""Deep-R: a fixed number of connections that rewire themselves while the network trains."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import nn

from .. import criteria
from ..forms import FixedSigns
from ..pruner import Pruner
from ..schedules import OneShot
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

        >>> pruner = flipout.DeepR(model, optimizer, sparsity=0.9, steps=steps, l1=1e-4)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of dormant connections.
        steps: the number of optimizer steps of the whole training.
        l1: pull of the weights towards zero.
        temperature: temperature T of the noise; `lr * l1^2 / 18` by default.
        options: see `Pruner`.
    """

    form: FixedSigns

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
        per_layer = options.get("scope") == "layer"
        form = FixedSigns(l1, temperature, options.get("seed", 0), per_layer=per_layer)
        schedule = OneShot(sparsity, steps, at=0)
        super().__init__(model, optimizer, criterion=criteria.random, schedule=schedule, form=form, **options)

    def start(self) -> None:
        self.form.keep_floors(self.floors)
        super().start()

"""SNIP: pruning before training, by the gradient of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..problems import Need
from ..pruner import Pruner
from ..runtime.passes import moved, without_trace
from ..schedules import Geometric, Pruning
from .options import Options
from .registry import LoopNeeds, register

MOST_ROUNDS = 10_000
"""Each round computes the gradient of all batches, and the plan lists every round."""


@register(
    "snip",
    title="SNIP",
    about="weights that hardly affect the loss of the initial network, before the first step",
    colour="#009e73",
    needs=LoopNeeds(batches=10),
)
class SNIP(Pruner):
    """SNIP (Lee et al., 2019): prune the lowest `|theta * dL/dtheta|` of the initial network before the first step.

    The gradient is that of the summed loss `loss_fn(model(input), target)` over all batches, with the model in its
    current mode. The passes leave no trace: norm statistics, gradients and the random state are restored.

        >>> pruner = flipout.SNIP(model, optimizer, sparsity=0.9, steps=steps, batches=[(x, y)], loss_fn=loss_fn)
        >>> pruner.nonzero  # already, before the first step
        26

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned.
        steps: the number of optimizer steps of the whole training.
        batches: pairs of input and target; tensors in them (also in tuples, lists and dictionaries) are moved to the
            device of the first weight.
        loss_fn: the loss of an output and a target.
        rounds: number of prunings, by equal shares; the gradient is computed again before each.
        options: see `Pruner`.
    """

    requires: ClassVar[dict[Need, str]] = {
        "whole weights": (
            "its gradients are those of whole weights. Prune the network with SNIP before you shard it, and then train "
            "it with flipout.KeepZeros"
        )
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        batches: Iterable[tuple[Any, Any]],
        loss_fn: Callable[[Any, Any], Tensor],
        rounds: int = 1,
        **options: Unpack[Options],
    ) -> None:
        if not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"rounds is {rounds}; give at least 1 and at most {MOST_ROUNDS:,}")
        with without_trace(model):  # an iterator may use torch's random state, and every round reads the batches
            self._batches = list(batches) if isinstance(batches, Iterator) else batches
        self._loss_fn = loss_fn
        super().__init__(
            model,
            optimizer,
            criterion=criteria.sensitivity,
            schedule=Geometric(sparsity, steps, prunings=rounds, window=(0, 0)),
            **options,
        )
        del self._batches, self._loss_fn

    def prune(self, pruning: Pruning) -> None:
        weights = [weight.parameter for weight in self.weights]
        totals = [weight.statistics["grad"].state["grad"].zero_() for weight in self.weights]
        self.units.watch(self.model)  # the calls below show it the channels
        with without_trace(self.model), torch.enable_grad():
            seen = False
            for batch in self._batches:
                seen = True
                inputs, targets = moved(batch, weights[0].device)
                loss = self._loss_fn(self.model(inputs), targets)
                for total, grad in zip(totals, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                    if grad is not None:
                        total.add_(grad)
        self.units.remove()
        if not seen:
            raise ValueError("batches is empty; pass at least one pair of input and target")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for total in totals:  # every rank has its own batches, and all need the same masks
                torch.distributed.all_reduce(total)
        super().prune(pruning)

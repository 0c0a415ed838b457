"""Lottery tickets: train, prune, rewind, and train again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..modules import named_tensors
from ..problems import Need
from ..pruner import Pruner
from ..schedules import Geometric, Pruning
from .options import InSteps, Options
from .registry import LoopNeeds, register
from .snip import MOST_ROUNDS


@register(
    "lottery",
    title="Lottery tickets",
    about="the smallest weights, then rewinds the others and trains again",
    colour="#7b5ea7",
    needs=LoopNeeds(restarts_learning_rate=True),
)
class Lottery(Pruner):
    """Iterative magnitude pruning with rewinding (Frankle and Carbin, 2019), in rounds of equal length.

    Each round ends with a pruning of the same share of the remaining weights. Then all weights and buffers are reset to
    their values at step `rewind_to`, and the state of the optimizer is cleared. After the last round the ticket is
    trained for as long as a round. Restart your learning rate schedule when `len(pruner.events)` grows.

    With `rewind_to=0` these are the values at the first step, even if they are loaded after the pruner was attached. In
    that case buffers, such as the statistics of norm layers, include the forward pass of the first step.

        >>> pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=steps, rounds=3, rewind_to=1)

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights that are pruned at the end.
        steps: the number of optimizer steps of all rounds together.
        rounds: the number of prunings.
        rewind_to: the step to rewind to. None does not rewind, as in the prune-and-retrain cycles of Han et al. (2015).
        options: see `Pruner`.
    """

    requires: ClassVar[dict[Need, str]] = {
        "whole network": "each round starts again from the early weights of all channels"
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        rounds: int = 5,
        rewind_to: Annotated[int | None, InSteps] = 0,
        **options: Unpack[Options],
    ) -> None:
        if not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"rounds is {rounds}; give at least 1 and at most {MOST_ROUNDS:,}")
        if steps <= rounds:
            raise ValueError(f"{steps} steps are too few for {rounds} rounds and training after the last; give more")
        schedule = Geometric(sparsity, steps, prunings=rounds, window=(0, rounds / (rounds + 1)))
        first = schedule.moments()[0]
        if rewind_to is not None and not 0 <= rewind_to < first:
            raise ValueError(f"rewind_to is {rewind_to}; give a step before the first pruning, which is at {first}")
        self.rewind_to = rewind_to
        self._early: dict[str, Tensor] = {}
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=schedule, **options)

    def start(self) -> None:
        super().start()
        if self.rewind_to == 0:
            self._note_early_values()

    def stepped(self) -> None:
        if self.step == self.rewind_to and not self._early:
            self._note_early_values()

    def _note_early_values(self) -> None:
        self._early = {name: tensor.detach().clone() for name, tensor in named_tensors(self.model).items()}

    def prune(self, pruning: Pruning) -> None:
        super().prune(pruning)
        if self.rewind_to is None:
            return
        for name, tensor in named_tensors(self.model).items():
            tensor.copy_(self._early[name])
        for parameter in self.model.parameters():
            self.optimizer.state.pop(parameter, None)
        for weight in self.weights:
            weight.zero()

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"rewind_to": self.rewind_to}

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        if self.rewind_to is None:
            return {}
        here = named_tensors(self.model)  # before step `rewind_to` they take the place of the early values
        return {"early": {name: self._early.get(name, tensor) for name, tensor in here.items()}}

    def load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        here, noted = named_tensors(self.model), self.rewind_to is not None and self.step >= self.rewind_to
        self._early = {n: t.to(here[n].device, copy=True) for n, t in extra["early"].items()} if noted else {}

"""Lottery tickets: train, prune, rewind, and train again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..layers import named_tensors
from ..pruner import Pruner
from ..schedules import Geometric, Pruning
from .options import InSteps, Options
from .registry import LoopNeeds, register


@register(
    "lottery",
    title="Lottery tickets",
    about="the smallest weights, then rewinds the others and trains again",
    colour="#7b5ea7",
    needs=LoopNeeds(restarts_learning_rate=True),
)
class Lottery(Pruner):
    """Iterative magnitude pruning with rewinding (Frankle and Carbin, 2019), in `rounds` of equal length.

    `steps` is the total. Each round ends with a pruning of the same share of what is left, after which all weights and
    buffers go back to what they were at step `rewind_to` and the optimizer forgets its state; after the last round the
    ticket is trained once more for as long as a round. Restart your learning rate schedule when `len(pruner.events)`
    grows. With `rewind_to=None` training just goes on: the prune-and-retrain cycles of Han et al. (2015).

        pruner = flipout.Lottery(model, optimizer, sparsity=0.99, steps=steps, rounds=5, rewind_to=100)
    """

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
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; give at least 1")
        if steps <= rounds:
            raise ValueError(f"{steps} steps are too few for {rounds} rounds and training after the last; give more")
        schedule = Geometric(sparsity, steps, prunings=rounds, window=(0, rounds / (rounds + 1)))
        first = schedule.moments()[0]
        if rewind_to is not None and not 0 <= rewind_to < first:
            raise ValueError(f"rewind_to is {rewind_to}; give a step before the first pruning, which is at {first}")
        self.rewind_to = rewind_to
        self._early: dict[str, Tensor] = {}
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=schedule, **options)

    def _begin(self) -> None:
        self._settle()

    def _settle(self) -> None:
        super()._settle()
        if self.step == self.rewind_to and not self._early:
            self._early = {name: tensor.detach().clone() for name, tensor in named_tensors(self.model).items()}

    def _prune(self, pruning: Pruning) -> None:
        super()._prune(pruning)
        if self.rewind_to is None:
            return
        for name, tensor in named_tensors(self.model).items():
            tensor.copy_(self._early[name])
        for parameter in self.model.parameters():
            self.optimizer.state.pop(parameter, None)
        super()._settle()

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"rewind_to": self.rewind_to}

    def _extra_state(self) -> dict[str, dict[str, Tensor]]:
        return {"early": self._early}

    def _load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        here = named_tensors(self.model)
        self._early = {name: tensor.to(here[name].device, copy=True) for name, tensor in extra["early"].items()}

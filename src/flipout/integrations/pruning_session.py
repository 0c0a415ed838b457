"""The life of a pruner under a trainer: attached when training starts, saved with checkpoints, restored, detached."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .. import Pruner, UnfinishedWarning
from ..problems import ChangedLengthWarning
from .pruner_building import PrunerRecipe


class PruningSession:
    """A pruner and what a trainer's checkpoint has to hold for it.

    `total` is the optimizer step of the trainer at which the schedule ends. `released` is whether early stopping and
    the comparison of checkpoints have begun.
    """

    def __init__(self, recipe: PrunerRecipe) -> None:
        self.recipe = recipe
        self.pruner: Pruner | None = None
        self.released = False
        self._attached = False
        self._total = 0
        self._state: dict[str, Any] = {}
        self._model: weakref.ref[nn.Module] | None = None

    def load(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the next start. An empty one was saved before training started."""
        if state and not (isinstance(state.get("steps"), int) and isinstance(state.get("total"), int)):
            raise ValueError("this is not the state of a Prune callback: it has no numbers `steps` and `total`")
        self._state, self._model = dict(state), None

    def state(self) -> dict[str, Any]:
        """Everything needed to go on: plain data and tensors. Empty before the first start."""
        if not self._attached or self.pruner is None:
            return self._state
        steps = self.pruner.schedule.steps
        return {"steps": steps, "total": self._total, "released": self.released, "pruner": self.pruner.state_dict()}

    def start(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        length: Callable[[], int],
        done: int,
        **further: Any,
    ) -> Pruner:
        """Attach a pruner: with the loaded state, with that of the last training of this model, or a new one.

        `length()` is the number of optimizer steps of the whole training, of which `done` are taken.
        """
        self.stop(quietly=True)
        state = self._state if self._model is None or self._model() is model else {}
        steps = self._steps(state, length, done)
        self.pruner = self.recipe.build(model, optimizer, steps, **further)
        if any(self.pruner.pieces):
            self.pruner.remove()
            raise ValueError(
                "the Prune callback does not work with sharded weights (FSDP2, tensor parallel), because a trainer "
                "saves its state on one rank alone: use DistributedDataParallel, or a loop of your own and "
                "torch.distributed.checkpoint"
            )
        self._attached, self._model = True, weakref.ref(model)
        self._total = state.get("total", done + self.pruner.schedule.steps)
        self.released = bool(state.get("released", False))
        if state:
            try:
                self.pruner.load_state_dict(state["pruner"])
            except BaseException:
                self._state = state
                self._detach(quietly=True)
                raise
        self._state = {}
        return self.pruner

    def _steps(self, state: Mapping[str, Any], length: Callable[[], int], done: int) -> int:
        given = self.recipe.steps
        if not state:
            if given is None and self.recipe.needs_steps:
                given = length() - done
            return given or 1
        saved: int = state["steps"]
        if given not in (None, saved):
            raise ValueError(
                f"the checkpoint was saved with a schedule of {saved:,} steps, and the callback has steps={given:,}. A "
                f"schedule cannot be changed once it has started: give steps={saved}, or leave steps= out"
            )
        if given is None and self.recipe.needs_steps:
            with contextlib.suppress(ValueError):  # a training without a fixed length goes on under the saved schedule
                _compare(length(), state["total"], saved)
        return saved

    def stop(self, *, quietly: bool = False) -> None:
        """Detach the pruner and keep its state. The zeros stay. `quietly` leaves the warnings of `remove` out."""
        if self._attached:
            self._state = self.state()
            self._detach(quietly)

    def _detach(self, quietly: bool) -> None:
        self._attached = False
        if self.pruner is None:
            return
        with warnings.catch_warnings():
            if quietly:
                warnings.simplefilter("ignore", UnfinishedWarning)
            self.pruner.remove()


def _compare(length: int, planned: int, steps: int) -> None:
    if length == planned:
        return
    effect = (
        "the zeros are kept after its end"
        if length > planned
        else "if training ends before its last pruning, the network does not reach the sparsity"
    )
    warnings.warn(
        f"training now ends at step {length:,}, but it was planned to end at step {planned:,} when pruning started. "
        f"The schedule of {steps:,} steps goes on as it was planned: {effect}. Give steps={steps} to say that you "
        "want this",
        ChangedLengthWarning,
        stacklevel=4,
    )

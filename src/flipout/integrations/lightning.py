"""Prune a LightningModule while a Lightning Trainer trains it.

from flipout.integrations.lightning import Prune

trainer = lightning.Trainer(max_epochs=40, callbacks=[Prune("flipout", sparsity=0.99)])
trainer.fit(module)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import Method, Pruner
from ..weights import Patterns, select_weights
from .session import PrunerRecipe, PruningSession, add_penalty, missing_package

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import (
        Checkpoint,
        EarlyStopping,
        GradientAccumulationScheduler,
        ModelCheckpoint,
        StochasticWeightAveraging,
        WeightAveraging,
    )
except ModuleNotFoundError as error:
    raise missing_package("lightning") from error

__all__ = ["Prune"]

FAST_DEV_STEPS = 1000
"""The length that pruning is planned for under `fast_dev_run`, which is too short for any schedule."""
WITHHELD = "_flipout_withheld_threshold"
"""The attribute of an `EarlyStopping` that keeps its stopping threshold while it is held back."""


class LightningPrune(Callback):
    """Prune the module of a Lightning Trainer.

        Prune("flipout", sparsity=0.99)
        Prune(flipout.GlobalMagnitude, sparsity=0.9, scope="layer", exclude="model.head")

    The pruner is attached when training starts, after a checkpoint is restored. Its state is part of the Trainer's
    checkpoints: `trainer.fit(module, ckpt_path=...)` resumes bit for bit. A second `fit` of the same module resumes
    too, with the masks that it has. `pruner` is the pruner itself, from the start of training on.

    Args:
        method: the name of a method, such as "flipout", or a subclass of `Pruner`.
        steps: the number of optimizer steps of the schedule. By default the length of training: `max_epochs` or
            `max_steps`, with gradient accumulation and several devices taken into account. Manual optimization and
            trainings without a fixed length need it.
        optimizer: the index of the optimizer whose weights are pruned, if there are several. By default the one that
            holds the weights.
        hold_back: hold back `EarlyStopping` and the comparison of `ModelCheckpoint(monitor=...)` until the last
            pruning is done. Until then every checkpoint counts as better than those before it.
        log: the name under which the sparsity is logged at every step, or None. Two callbacks need two names.
        summary: print a table of the layers at the end of training.
        options: the options of the method.
    """

    def __init__(
        self,
        method: str | type[Pruner] | Method = "flipout",
        *,
        steps: int | None = None,
        optimizer: int | None = None,
        hold_back: bool = True,
        log: str | None = "sparsity",
        summary: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._session = PruningSession(PrunerRecipe(method, steps, options))
        self._optimizer, self._hold_back, self._log, self._summary = optimizer, hold_back, log, summary
        self._max_epochs: int | None = None
        self._masked = -1

    @property
    def pruner(self) -> Pruner | None:
        """The pruner. None before training starts."""
        return self._session.pruner

    # The state in the Trainer's checkpoints.

    @property
    def state_key(self) -> str:
        return f"flipout.Prune({self._log})"

    def state_dict(self) -> dict[str, Any]:
        return self._session.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts: the optimizers do not exist yet."""
        self._session.load(state_dict)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._max_epochs = trainer.max_epochs  # StochasticWeightAveraging adds an epoch later
            trainer.callbacks = moved_before_checkpoints(self, trainer.callbacks)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        options = self._session.recipe.options
        optimizer, further = choose_optimizer(
            pl_module, trainer.optimizers, self._optimizer, options.get("include"), options.get("exclude")
        )
        self._session.recipe.refuse_scaler(getattr(trainer.precision_plugin, "scaler", None))
        length = partial(training_steps, trainer, pl_module, self._max_epochs)
        self._session.start(pl_module, optimizer, length, trainer.global_step, **further)
        self._masked = -1

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self.pruner is not None and optimizer is self.pruner.optimizer:
            add_penalty(self.pruner)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.pruner is not None
        self._mask_averages(trainer)
        if self._hold_back and not self._session.released:
            self._session.released = self.pruner.finished
            begin_comparison(trainer, released=self._session.released)
        if self._log is not None and not trainer.barebones:
            pl_module.log(self._log, self.pruner.sparsity, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._mask_averages(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Zero what weight averaging has copied into the model, and detach."""
        assert self.pruner is not None
        self.pruner.apply_to(pl_module)
        begin_comparison(trainer, released=True, forget=False)
        if self._log is not None:
            for logger in trainer.loggers:
                logger.log_metrics({self._log: self.pruner.sparsity}, step=trainer.global_step)
        if self._summary and trainer.is_global_zero:
            print(self.pruner.summary())
        self._session.stop(quietly=bool(trainer.fast_dev_run))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        begin_comparison(trainer, released=True, forget=False)
        self._session.stop(quietly=True)

    def _mask_averages(self, trainer: Trainer) -> None:
        """Zero pruned weights in averages of the weights, if the masks have changed. They stay zero by themselves."""
        assert self.pruner is not None
        if not self.pruner.permanent or len(self.pruner.events) != self._masked:
            self._masked = len(self.pruner.events)
            averaging = (c for c in trainer.callbacks if isinstance(c, StochasticWeightAveraging | WeightAveraging))
            for average in (callback._average_model for callback in averaging):
                if isinstance(average, nn.Module):
                    self.pruner.apply_to(average)


Prune = LightningPrune


def training_steps(trainer: Trainer, module: LightningModule, max_epochs: int | None) -> int:
    """The optimizer steps of the whole training. Raise a ValueError if it has no fixed length.

    This is `trainer.estimated_stepping_batches`, for gradient accumulation that changes by epoch as well. The batches
    are those of one device: all devices step together.
    """
    if trainer.fast_dev_run:
        return FAST_DEV_STEPS
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} uses manual optimization, so only you know how many steps its optimizer takes: "
            "give Prune(..., steps=...)"
        )
    limits = [] if trainer.max_steps == -1 else [trainer.max_steps]
    batches = trainer.num_training_batches
    if max_epochs is not None and max_epochs >= 0 and math.isfinite(batches):
        limits.append(sum(math.ceil(batches / _accumulated(trainer, epoch)) for epoch in range(max_epochs)))
    if not limits:
        raise ValueError(
            "this training has no fixed length, so the pruning cannot be planned: set max_steps of the Trainer (or "
            "max_epochs, if the training data has a length), or give Prune(..., steps=...)"
        )
    return int(min(limits))


def _accumulated(trainer: Trainer, epoch: int) -> int:
    """The number of batches that an optimizer step of an epoch takes."""
    for callback in trainer.callbacks:
        if isinstance(callback, GradientAccumulationScheduler):
            return int(callback.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)


def choose_optimizer(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    index: int | None,
    include: Patterns | None,
    exclude: Patterns | None,
) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """The optimizer that holds the weights to prune, and further options for the pruner.

    With an index, only weights of that optimizer are pruned. Without one, a single optimizer must hold all of them.
    """
    if index is None and len(optimizers) == 1:
        return optimizers[0], {}
    weights = select_weights(model, include, exclude)
    held = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    counts = [sum(id(weight) in ids for _, weight in weights) for ids in held]
    if index is None and counts.count(len(weights)) == 1:
        return optimizers[counts.index(len(weights))], {}
    if index is not None and 0 <= index < len(optimizers) and counts[index]:
        names = [name for name, weight in weights if id(weight) in held[index]]
        return optimizers[index], {"include": names, "exclude": None}
    listed = ", ".join(f"optimizer {number} holds {count} of them" for number, count in enumerate(counts))
    raise ValueError(
        f"there are {len(optimizers)} optimizers and {len(weights)} weights to prune: {listed or 'none holds them'}. "
        f"Choose one with optimizer= (now {index}), or its weights with include= or exclude=. To prune the weights of "
        "several optimizers, use a callback for each"
    )


def moved_before_checkpoints(callback: Callback, callbacks: list[Callback]) -> list[Callback]:
    """A list in which a callback comes after all others but the checkpoints.

    So it zeroes averages after they were updated, and before they are saved.
    """
    others = [other for other in callbacks if other is not callback]
    checkpoints = [other for other in others if isinstance(other, Checkpoint)]
    return [*(other for other in others if not isinstance(other, Checkpoint)), callback, *checkpoints]


def begin_comparison(trainer: Trainer, *, released: bool, forget: bool = True) -> None:
    """Make early stopping and best checkpoints forget the scores so far, which a less sparse network had.

    Called after every batch until the last pruning is done, this holds them back: nothing is worse than before, so
    training does not stop, and the newest checkpoint is the best.
    """
    for callback in trainer.callbacks:
        if isinstance(callback, EarlyStopping):
            _hold_stopping_threshold(callback, released)
            if forget:
                callback.wait_count = 0
                callback.best_score = torch.tensor(_worst(callback.mode))
        elif isinstance(callback, ModelCheckpoint) and callback.monitor is not None and forget:
            _forget_scores(callback)


def _worst(mode: str) -> float:
    return torch.inf if mode == "min" else -torch.inf


def _hold_stopping_threshold(callback: EarlyStopping, released: bool) -> None:
    withheld = vars(callback)
    if released:
        callback.stopping_threshold = withheld.pop(WITHHELD, callback.stopping_threshold)
    elif WITHHELD not in withheld:
        withheld[WITHHELD], callback.stopping_threshold = callback.stopping_threshold, None


def _forget_scores(callback: ModelCheckpoint) -> None:
    """Give the saved checkpoints the worst score, so that the next one replaces the oldest of them."""
    for path, score in callback.best_k_models.items():
        callback.best_k_models[path] = torch.full_like(score, _worst(callback.mode))
    if callback.best_model_score is not None:
        callback.best_model_score = torch.full_like(callback.best_model_score, _worst(callback.mode))
    if callback.best_k_models and callback.kth_best_model_path:
        callback.kth_best_model_path = next(iter(callback.best_k_models))
        callback.kth_value = callback.best_k_models[callback.kth_best_model_path]

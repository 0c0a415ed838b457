"""Other callbacks of a Lightning Trainer that have to know of pruning: early stopping, best checkpoints, averages."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from .. import Pruner

WITHHELD = "_flipout_withheld_threshold"
"""The attribute of an `EarlyStopping` that keeps its stopping threshold while it is held back."""


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
    if released:
        if hasattr(callback, WITHHELD):
            callback.stopping_threshold = getattr(callback, WITHHELD)
            delattr(callback, WITHHELD)
    elif not hasattr(callback, WITHHELD):
        setattr(callback, WITHHELD, callback.stopping_threshold)
        callback.stopping_threshold = None


def _forget_scores(callback: ModelCheckpoint) -> None:
    """Give the saved checkpoints the worst score, so that the next one replaces the oldest of them."""
    for path, score in callback.best_k_models.items():
        callback.best_k_models[path] = torch.full_like(score, _worst(callback.mode))
    if callback.best_model_score is not None:
        callback.best_model_score = torch.full_like(callback.best_model_score, _worst(callback.mode))
    if callback.best_k_models and callback.kth_best_model_path:
        callback.kth_best_model_path = next(iter(callback.best_k_models))
        callback.kth_value = callback.best_k_models[callback.kth_best_model_path]


def mask_averages(trainer: Trainer, pruner: Pruner) -> None:
    """Zero the pruned weights in the averages that other callbacks keep."""
    for callback in trainer.callbacks:
        if isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
            average = callback._average_model
            if isinstance(average, nn.Module):
                pruner.apply_to(average)

"""The number of optimizer steps of a Lightning training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

FAST_DEV_STEPS = 1000
"""The length that pruning is planned for under `fast_dev_run`, which is too short for any schedule."""


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
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    for callback in trainer.callbacks:
        if isinstance(callback, GradientAccumulationScheduler):
            return int(callback.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)

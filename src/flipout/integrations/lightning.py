"""Prune a LightningModule while a Lightning Trainer trains it.

from flipout.integrations.lightning import Prune

trainer = lightning.Trainer(max_epochs=40, callbacks=[Prune("flipout", sparsity=0.99)])
trainer.fit(module)
"""

from __future__ import annotations

from typing import Any

import torch

from .. import Method, Pruner
from .lightning_steps import training_steps
from .missing_packages import missing_package
from .optimizer_choice import choose_optimizer
from .pruner_building import PrunerRecipe, add_penalty, refuse_scaled_penalty
from .pruning_session import PruningSession

try:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from .lightning_callbacks import begin_comparison, mask_averages, moved_before_checkpoints
except ModuleNotFoundError as error:
    raise missing_package("lightning", "lightning") from error

__all__ = ["Prune"]


class LightningPrune(Callback):
    """Prune the module of a Lightning Trainer.

        Prune("flipout", sparsity=0.99)
        Prune(flipout.GlobalMagnitude, sparsity=0.9, scope="layer", exclude="model.head")

    The pruner is attached when training starts, after a checkpoint is restored. Its state is part of the Trainer's
    checkpoints: `trainer.fit(module, ckpt_path=...)` goes on bit for bit. A second `fit` of the same module goes on
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

    # The course of a training.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._max_epochs = trainer.max_epochs  # StochasticWeightAveraging adds an epoch later
            trainer.callbacks = moved_before_checkpoints(self, trainer.callbacks)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        options = self._session.recipe.options
        optimizer, further = choose_optimizer(
            pl_module, trainer.optimizers, self._optimizer, options.get("include"), options.get("exclude")
        )
        refuse_scaled_penalty(self._session.recipe, getattr(trainer.precision_plugin, "scaler", None))
        self._session.start(
            pl_module,
            optimizer,
            lambda: training_steps(trainer, pl_module, self._max_epochs),
            trainer.global_step,
            **further,
        )
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
        self._release(trainer)
        if self._log is not None:
            for logger in trainer.loggers:
                logger.log_metrics({self._log: self.pruner.sparsity}, step=trainer.global_step)
        if self._summary and trainer.is_global_zero:
            print(self.pruner.summary())
        self._session.stop(quietly=bool(trainer.fast_dev_run))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release(trainer)
        self._session.stop(quietly=True)

    def _release(self, trainer: Trainer) -> None:
        """Give other callbacks their settings back."""
        if self._hold_back:
            begin_comparison(trainer, released=True, forget=False)

    def _mask_averages(self, trainer: Trainer) -> None:
        """Zero pruned weights in averages of the weights, if the masks have changed. They stay zero by themselves."""
        assert self.pruner is not None
        if self.pruner.regrows or len(self.pruner.events) != self._masked:
            self._masked = len(self.pruner.events)
            mask_averages(trainer, self.pruner)


Prune = LightningPrune

"""Prune a model while a Hugging Face Trainer trains it.

from flipout.integrations.transformers import Prune

trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[Prune("flipout", sparsity=0.9)])
trainer.train()
"""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import Method, Pruner
from ..atomic_files import replacing
from .session import PrunerRecipe, PruningSession, add_penalty, missing_package

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise missing_package("transformers") from error

__all__ = ["Prune"]

MARK = "flipout"
"""The key in `trainer_state.json` which says that a checkpoint has the state of a pruner."""


class TransformersPrune(TrainerCallback):
    """Prune the model of a Hugging Face Trainer.

        Prune("flipout", sparsity=0.9)
        Prune(flipout.GlobalMagnitude, sparsity=0.9, exclude="lm_head")

    The pruner is attached when training starts. Its state is a file in each `checkpoint-N` folder:
    `trainer.train(resume_from_checkpoint=...)` resumes bit for bit. A second `train` of the same model resumes too,
    with the masks that it has. `pruner` is the pruner itself, from the start of training on.

    Args:
        method: the name of a method, such as "flipout", or a subclass of `Pruner`.
        steps: the number of optimizer steps of the schedule. By default the length of training that the Trainer
            computes.
        hold_back: hold back `EarlyStoppingCallback` and the choice of the best checkpoint (`load_best_model_at_end`)
            until the last pruning is done. Until then every evaluation counts as better than those before it.
        log: the name under which the sparsity is added to every log, or None. Two callbacks need two names.
        summary: print a table of the layers at the end of training.
        resume_from: the checkpoint folder that has the state, if it is not the one that the Trainer resumes from.
        options: the options of the method.
    """

    def __init__(
        self,
        method: str | type[Pruner] | Method = "flipout",
        *,
        steps: int | None = None,
        hold_back: bool = True,
        log: str | None = "sparsity",
        summary: bool = True,
        resume_from: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._session = PruningSession(PrunerRecipe(method, steps, options))
        self._hold_back, self._log, self._summary = hold_back, log, summary
        self._resume_from = None if resume_from is None else Path(resume_from)
        self._file = "flipout.pt" if log in (None, "sparsity") else f"flipout.{log}.pt"

    @property
    def pruner(self) -> Pruner | None:
        """The pruner. None before training starts."""
        return self._session.pruner

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        **others: Any,
    ) -> None:
        trainer, resumed = calling_trainer()
        if trainer is not None:  # a new list, because the Trainer is iterating over the old one
            handler = trainer.callback_handler
            handler.callbacks = [self, *(other for other in handler.callbacks if other is not self)]
            self._session.recipe.refuse_scaler(getattr(trainer.accelerator, "scaler", None))
        if state.global_step:
            folders = (self._resume_from, Path(resumed) if resumed else None)
            self._load(state, (*folders, checkpoint_folder(args.output_dir, state.global_step)))
        self._session.start(model, optimizer, lambda: int(state.max_steps), state.global_step)
        files = {self._file, *state.stateful_callbacks.get(MARK, {}).get("files", ())}
        state.stateful_callbacks[MARK] = {"args": {}, "attributes": {}, "files": sorted(files)}

    def _load(self, state: TrainerState, folders: tuple[Path | None, ...]) -> None:
        """Load the state of the checkpoint that training resumes from, if it was saved with this callback."""
        path = next((folder / self._file for folder in folders if folder and (folder / self._file).is_file()), None)
        if path is not None:
            self._session.load(read_state(path))
        elif self._file in state.stateful_callbacks.get(MARK, {}).get("files", ()):
            searched = ", ".join(str(folder) for folder in dict.fromkeys(folders) if folder)
            raise ValueError(
                f"the checkpoint of step {state.global_step} was saved with pruning, but the state of the pruner, "
                f"{self._file}, is missing in {searched}. Resume from an earlier checkpoint, or give the folder that "
                "has the file: Prune(..., resume_from=...)"
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self.pruner is not None:
            add_penalty(self.pruner)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Forget the best score of a less sparse network. Until the last pruning, the newest network is the best."""
        assert self.pruner is not None
        if not self._hold_back or self._session.released:
            return
        state.best_metric = None
        if self.pruner.finished:
            self._session.released = True
            state.best_global_step = state.best_model_checkpoint = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        if self.pruner is None or self._log is None:
            return
        if logs is not None:
            logs[self._log] = self.pruner.sparsity
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1][self._log] = self.pruner.sparsity

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if args.should_save:
            folder = checkpoint_folder(args.output_dir, state.global_step)
            write_state(folder / self._file, self._session.state())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        assert self.pruner is not None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = Path(state.best_model_checkpoint) / self._file
            if best.is_file():  # the state that belongs to the best model, which the Trainer has just loaded
                self.pruner.load_state_dict(read_state(best)["pruner"])
        if self._summary and state.is_world_process_zero:
            print(self.pruner.summary())
        self._session.stop()


Prune = TransformersPrune


def calling_trainer() -> tuple[Trainer | None, str | None]:
    """The Trainer whose training loop has called, and its `resume_from_checkpoint`, if there is one.

    The Trainer passes neither of them to its callbacks. Both are needed: reporting callbacks run before those of the
    user, so that a number added to the logs would not reach them; and the state of a pruner is in the folder that is
    resumed. They are read from the call stack. Where they are not found, what the Trainer does pass has to do.
    """
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            folder = frame.f_locals.get("resume_from_checkpoint")
            return trainer, folder if isinstance(folder, str) else None
        frame = frame.f_back
    return None, None


def checkpoint_folder(output: str | Path | None, step: int) -> Path:
    """The folder of a checkpoint below the Trainer's output folder, or below that of a trial of its search."""
    name, top = f"checkpoint-{step}", Path(output or ".")
    trials = sorted(top.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime)
    return trials[-1] if trials and not (top / name).is_dir() else top / name


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state: the file is complete, or does not exist."""
    with replacing(path) as temporary:
        torch.save(dict(state), temporary)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state. Nothing but tensors and plain data is unpickled."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read; resume from another checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is not the state of a Prune callback, but a {type(state).__name__}")
    return state

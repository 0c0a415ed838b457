"""Trackers: log the metrics of a run elsewhere too, such as TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import LabError


class Tracker(Protocol):
    """Receives the metrics of a run. For W&B: `start` calls `wandb.init(config=...)`, `log` calls `wandb.log(...)`,
    `finish` calls `wandb.finish()`."""

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        """Called before the first epoch. `epoch` is the number of epochs that a resumed run has finished."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Called after each epoch."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Called at the end."""


class TensorBoard:
    """Writes event files to the folder `tensorboard` of the run."""

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise LabError("--tensorboard needs the package tensorboard: pip install tensorboard") from error
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and name != "epoch":
                self.writer.add_scalar(name, value, metrics["epoch"])
        self.writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        self.writer.close()

"""Where the numbers of a run go besides its folder: TensorBoard, or anything with three methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import LabError


class Tracker(Protocol):
    """What is told about a run. For W&B: `start` calls `wandb.init(config=...)`, `log` calls `wandb.log(...)`, `finish`
    calls `wandb.finish()`."""

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        """Before the first epoch, or before `epoch` of a run that goes on."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """After each epoch."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """At the end."""


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

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

"""Trackers: log the metrics of a run elsewhere too: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import optional_module


class Tracker(Protocol):
    """Receives the metrics of a run. Any object with these three methods is one.

    Examples:
        >>> class Printer:
        ...     def start(self, folder, settings, epoch): ...
        ...     def log(self, metrics):
        ...         print("epoch", metrics["epoch"])
        ...     def finish(self, result): ...
        >>> settings = flipout_lab.make_settings(model="mlp", method="dense", epochs=1, threads=1)
        >>> result = flipout_lab.train(settings, "runs/dense", trackers=[Printer()])
        epoch 1
    """

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        """Called before the first epoch. `epoch` is the number of epochs that a resumed run has finished."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Called after each epoch."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Called at the end."""


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float)) and name != "epoch"}


class TensorBoard:
    """Writes event files to the folder `tensorboard` of the run."""

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        optional_module("tensorboard", "--tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in _numbers(metrics).items():
            self.writer.add_scalar(name, value, metrics["epoch"])
        self.writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        self.writer.close()


class MLflow:
    """Logs to MLflow: to the server of `MLFLOW_TRACKING_URI`, or else to files in the folder `mlflow` of the run.

    A resumed run continues the same MLflow run.
    """

    EXPERIMENT = "flipout"
    FOLDER = "flipout.folder"
    """The tag that a resumed run is found by."""

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run uses no network
        tracking = optional_module("mlflow.tracking", "--mlflow", "'flipout[mlflow]'")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # otherwise MLflow insists on a database
            uri = (folder / "mlflow").resolve().as_uri()
        self.client: Any = tracking.MlflowClient(tracking_uri=uri)
        self.run = self._run_of(folder, settings)
        history = self.client.get_metric_history(self.run, "step")
        self.logged = {metric.step for metric in history}  # epochs after the checkpoint that is resumed

    def _run_of(self, folder: Path, settings: Mapping[str, Any]) -> str:
        """The MLflow run of a folder: the one that a killed run has started, or a new one."""
        known = self.client.get_experiment_by_name(self.EXPERIMENT)
        experiment = self.client.create_experiment(self.EXPERIMENT) if known is None else known.experiment_id
        path = str(folder.resolve())
        for run in self.client.search_runs([experiment]):
            if run.data.tags.get(self.FOLDER) == path:
                self.client.update_run(run.info.run_id, status="RUNNING")
                return str(run.info.run_id)
        run = self.client.create_run(experiment, tags={self.FOLDER: path}, run_name=folder.resolve().name)
        for name, value in settings.items():
            self.client.log_param(run.info.run_id, name, value)
        return str(run.info.run_id)

    def log(self, metrics: Mapping[str, Any]) -> None:
        if metrics["epoch"] in self.logged:
            return
        for name, value in _numbers(metrics).items():
            self.client.log_metric(self.run, name, value, step=metrics["epoch"])

    def finish(self, result: Mapping[str, Any]) -> None:
        self.client.set_terminated(self.run, "FINISHED")


class WeightsAndBiases:
    """Logs to Weights & Biases, offline by default: to files in the folder `wandb` of the run, for `wandb sync`.

    Set `WANDB_MODE=online` to upload while training. A resumed run has the same id as the run it continues.
    """

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        wandb = optional_module("wandb", "--wandb", "'flipout[wandb]'")
        path = folder.resolve()
        self.run: Any = wandb.init(
            project="flipout",
            name=path.name,
            id=hashlib.sha256(str(path).encode()).hexdigest()[:16],
            dir=path,
            config=dict(settings),
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            resume="allow" if os.environ.get("WANDB_MODE") == "online" else None,
            reinit="finish_previous",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.run.log(_numbers(metrics), step=metrics["epoch"])

    def finish(self, result: Mapping[str, Any]) -> None:
        self.run.summary.update(_numbers(result))
        self.run.finish()

"""Trackers with the real packages. None of them may use the network."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from flipout_lab.errors import LabError, StoppedError
from flipout_lab.runs.trackers import MLflow, WeightsAndBiases
from flipout_lab.runs.training import train
from tests.lab.helpers import StopAt
from tests.lab.runs.test_training import settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.filterwarnings("ignore:.*[Ff]ilesystem tracking backend")
def test_mlflow_has_every_epoch_once_after_a_resume(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    with pytest.raises(StoppedError):
        train(settings(), tmp_path, trackers=[MLflow()], view=StopAt(24))
    train(settings(), tmp_path, trackers=[MLflow()])
    client = tracking.MlflowClient(tracking_uri=(tmp_path / "mlflow").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("flipout").experiment_id])
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "test_accuracy")] == [1, 2, 3, 4]
    assert run.data.params["method"] == "flipout"
    assert run.data.metrics["sparsity"] == pytest.approx(float(run.data.params["sparsity"]), abs=0.01)
    assert run.info.status == "FINISHED"


@pytest.mark.usefixtures("no_network")
def test_mlflow_does_not_log_an_epoch_again(tmp_path: Path) -> None:
    """A run that was killed after an epoch was logged, but before its checkpoint, repeats the epoch."""
    pytest.importorskip("mlflow")
    for epochs in ((1, 2), (2, 3)):
        tracker = MLflow()
        tracker.start(tmp_path, {"method": "flipout"}, 1)
        for epoch in epochs:
            tracker.log({"epoch": epoch, "step": 10 * epoch, "loss": 1.0, "flips": None})
    assert [metric.step for metric in tracker.client.get_metric_history(tracker.run, "loss")] == [1, 2, 3]


@pytest.mark.usefixtures("no_network")
def test_wandb_is_offline_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with pytest.raises(StoppedError):
        train(settings(), tmp_path, trackers=[WeightsAndBiases()], view=StopAt(24))
    train(settings(), tmp_path, trackers=[WeightsAndBiases()])
    wandb.teardown()  # its process has written everything when it has ended
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len({path.name for path in files}) == 1
    steps = [step for path in files for step in logged_steps(path)]
    assert steps == [1, 2, 3, 4]


def logged_steps(path: Path) -> list[int]:
    """The steps in a file of W&B: 7 bytes, then blocks of 32 KiB with records: checksum, length, kind, data."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, steps = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
    return steps


@pytest.mark.parametrize(("tracker", "package"), [(MLflow(), "mlflow"), (WeightsAndBiases(), "wandb")])
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.tracking", None)
    with pytest.raises(LabError, match=rf"flipout\[{package}\]"):
        tracker.start(tmp_path, {}, 0)

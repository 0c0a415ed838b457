"""A run is a folder, survives every interruption, and ends with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import flipout
from flipout_lab import LabError, data, load_run, make_settings, train
from flipout_lab.data.batches import prepare
from flipout_lab.errors import StoppedError
from flipout_lab.runs import run_folder
from flipout_lab.runs import training as run_module
from flipout_lab.runs.networks import evaluate
from flipout_lab.runs.run_folder import load_weights, model_bytes, read_result, read_settings
from flipout_lab.runs.trackers import TensorBoard
from tests.lab.helpers import StopAt, untimed

EPOCHS = 4


def settings(**options: Any) -> Any:
    return make_settings(**{"epochs": EPOCHS, "sparsity": 0.9, **options})


def test_files_in_the_folder(tmp_path: Path) -> None:
    result = train(settings(), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "run.lock",
    ]
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert {k: result[k] for k in ("method", "data", "model", "seed", "epochs")} == {
        "method": "flipout",
        "data": "digits",
        "model": "mlp",
        "seed": 0,
        "epochs": EPOCHS,
    }
    assert result["nonzero"] == round(result["prunable"] * 0.1)
    assert result["accuracy_of"] == "last epoch"
    assert result["dead_layers"] == []
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert result["test_accuracy"] == lines[-1]["test_accuracy"] > 0.7
    assert {"loss", "sparsity", "learning_rate", "seconds", "flips"} <= set(lines[0])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"] == settings().as_dict()
    assert config["network"] == {"shape": [1, 8, 8], "classes": 10}
    assert config["versions"]["torch"] == torch.__version__
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert len(file.metadata()) <= 1
    zeros = sum(int((w != 0).sum()) for n, w in load_file(tmp_path / "model.safetensors").items() if "weight" in n)
    assert zeros == result["nonzero"]


def test_the_network_can_be_loaded(tmp_path: Path) -> None:
    result = train(settings(), tmp_path)
    model = load_run(tmp_path)
    assert not model.training
    _, held_out = prepare(data.load("digits"), torch.device("cpu"), validate=False)
    assert evaluate(model, held_out) == result["test_accuracy"]


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
def test_a_resumed_run_ends_with_the_same_bytes(method: str, tmp_path: Path) -> None:
    """Twice in the middle of an epoch and once at its end."""
    chosen = settings(method=method)
    train(chosen, tmp_path / "whole")
    for stop in (5, 12, 29):
        with pytest.raises(StoppedError, match=f"at step {stop}"):
            train(chosen, tmp_path / "parts", view=StopAt(stop))
        assert not (tmp_path / "parts" / "result.json").exists()
    train(chosen, tmp_path / "parts")
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    one, other = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts"))
    assert untimed(one) == untimed(other)


def noisy_images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (80, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return images[:64], images[:64, 0, 0, 0] // 64, images[64:], images[64:, 0, 0, 0] // 64


def net(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(288, classes)
    )


def test_dropout_norms_and_augmentation_resume_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = data.Data("own", *noisy_images(), classes=4, flip=True, crop=1)
    monkeypatch.setattr(data, "load", lambda *_: loaded)
    chosen = settings(
        data="tests.lab.runs.test_training:noisy_images",
        model="tests.lab.runs.test_training:net",
        batch_size=8,
        optimizer="adam",
    )
    train(chosen, tmp_path / "whole")
    for stop in (3, 16):
        with pytest.raises(StoppedError):
            train(chosen, tmp_path / "parts", view=StopAt(stop))
        torch.rand(10)
    train(chosen, tmp_path / "parts")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(settings(), tmp_path)
    monkeypatch.setattr(run_module, "Run", None)
    assert train(settings(), tmp_path) == result


def test_other_settings_in_the_same_folder_are_an_error_that_shows_the_difference(tmp_path: Path) -> None:
    train(settings(), tmp_path)
    with pytest.raises(LabError, match=r"other settings[\s\S]*seed: 0 there, 1 here\n  p: 4\.0 there, 1\.0 here"):
        train(settings(seed=1, p=1), tmp_path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    train(settings(), tmp_path / "whole")
    folder = tmp_path / "parts"
    with pytest.raises(StoppedError):
        train(settings(), folder, view=StopAt(29))
    newest, older = sorted((folder / "checkpoint").iterdir(), reverse=True)
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=rf"{newest} is damaged"):
        train(settings(), folder)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert older.name == "step-0000000024.ckpt"


def test_with_all_checkpoints_damaged_it_starts_over(tmp_path: Path) -> None:
    train(settings(), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(settings(), tmp_path / "parts", view=StopAt(29))
    for path in (tmp_path / "parts" / "checkpoint").iterdir():
        path.write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(settings(), tmp_path / "parts")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    content = pickle.dumps(Attack())
    (tmp_path / "step-0000000001.ckpt").write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        run_folder.load_checkpoint(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_does_not_destroy_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(settings(), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(settings(), tmp_path / "parts", view=StopAt(20))
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LabError, match=r"disk is full"):
        train(settings(), tmp_path / "parts")
    monkeypatch.setattr(os, "fsync", real)
    assert not list((tmp_path / "parts").rglob("*.part"))
    assert run_folder.load_checkpoint(tmp_path / "parts" / "checkpoint") is not None
    train(settings(), tmp_path / "parts")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"--out"):
        train(settings(), tmp_path / "file" / "run")


def test_one_process_per_folder(tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / "run.lock"), pytest.raises(LabError, match="another process is training in"):
        train(settings(), tmp_path)
    train(settings(), tmp_path)


def test_another_number_of_threads_gives_a_warning(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(settings(), tmp_path, view=StopAt(5))
    config = json.loads((tmp_path / "config.json").read_text())
    config["versions"]["threads"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="started with 64 threads"):
        train(settings(), tmp_path)


def test_validation_does_not_use_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = data.load

    def load(*arguments: Any) -> Any:
        loaded = real(*arguments)
        return data.Data(
            loaded.name, loaded.train_images, loaded.train_labels, loaded.test_images[:0], loaded.test_labels[:0], 10
        )

    monkeypatch.setattr(data, "load", load)
    result = train(settings(validate=True), tmp_path)
    assert result["test_accuracy"] is None
    assert result["validation_accuracy"] > 0.7


def test_starting_from_given_weights(tmp_path: Path) -> None:
    first = train(settings(), tmp_path / "first")
    again = train(
        settings(method="keep-zeros", init=str(tmp_path / "first" / "model.safetensors"), epochs=1), tmp_path / "again"
    )
    assert again["nonzero"] == first["nonzero"]
    assert again["test_accuracy"] > 0.8
    with pytest.raises(LabError, match=r"(?s)does not fit Sequential.*1\.weight"):
        load_weights(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), tmp_path / "first" / "model.safetensors")
    (tmp_path / "bad").write_bytes(b"nonsense")
    with pytest.raises(LabError, match="cannot be read as safetensors"):
        train(settings(init=str(tmp_path / "bad")), tmp_path / "bad-run")


def test_shared_weights_are_saved_once_and_restored(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    one, other = tied(), tied()
    (tmp_path / "tied.safetensors").write_bytes(model_bytes(one))
    assert "1.weight" not in load_file(tmp_path / "tied.safetensors")
    load_weights(other, tmp_path / "tied.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert model_bytes(one) == model_bytes(other)


@pytest.mark.parametrize(
    "options", [{"learning_rate": 1e9}, {"method": "flipout-paper", "noise": 50, "relative_to": "weight"}]
)
def test_divergence_is_reported(options: dict[str, Any], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(LabError, match="diverged"):
            train(settings(**options), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"amp": True}, "--amp needs a GPU"), ({"device": "quantum"}, "--device quantum is not available here")],
)
def test_devices_that_are_not_available(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=message):
        train(settings(**options), tmp_path)


def test_a_failed_start_does_not_block_the_folder(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="--device"):
        train(settings(device="quantum"), tmp_path)
    with pytest.raises(LabError, match="cannot be read as safetensors"):
        train(settings(init=str(tmp_path / "absent")), tmp_path)
    assert train(settings(), tmp_path)["method"] == "flipout"


def test_dead_layers_are_in_the_result(tmp_path: Path) -> None:
    result = train(settings(method="random", sparsity=0.9999, model="mlp", width=0.1), tmp_path)
    assert result["dead_layers"]


class Recorder:
    """Records what W&B or MLflow would receive."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def start(self, folder: Path, settings: Mapping[str, Any], epoch: int) -> None:
        self.received.append(("start", epoch))

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.received.append(metrics["epoch"])

    def finish(self, result: Mapping[str, Any]) -> None:
        self.received.append(result["method"])


def test_trackers(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    with pytest.raises(StoppedError):
        train(settings(), tmp_path, trackers=[first], view=StopAt(24))
    train(settings(), tmp_path, trackers=[second])
    assert first.received == [("start", 0), 1, 2]
    assert second.received == [("start", 2), 3, 4, "flipout"]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(settings(), tmp_path, trackers=[TensorBoard()])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test_accuracy")] == [1, 2, 3, 4]


def test_real_mnist_is_learnt(real_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIPOUT_DATA", str(real_mnist))
    result = train(make_settings(model="lenet-300-100", sparsity=0.98, epochs=2), tmp_path)
    assert result["nonzero"] == 5324
    assert result["test_accuracy"] > 0.95


def test_simultaneous_starts_do_not_share_a_probe(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: run_folder.prepare_folder(tmp_path), range(2000)))
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_model_has_one_remedy(tmp_path: Path) -> None:
    train(settings(), tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    remedy = r"its model\.safetensors was deleted: restore the file, or delete .*result\.json and run the same command"
    with pytest.warns(UserWarning, match=remedy):
        train(settings(), tmp_path)
    with pytest.raises(LabError, match=remedy):
        load_run(tmp_path)
    (tmp_path / "result.json").unlink()
    train(settings(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == content


def test_a_network_is_loaded_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(make_settings(epochs=1), tmp_path)

    def not_available(*_: Any) -> None:
        raise AssertionError("the data set was read")

    monkeypatch.setattr(data, "load", not_available)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["data"] = "/not/here"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not load_run(tmp_path).training


def test_runs_in_one_shot_share_their_dense_network(tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": "digits", "model": "mlp", "epochs": 2, "method": "dense", "sparsity": 0.8}
    results = {}
    for method in ("obs", "magnitude"):
        results[method] = train(make_settings(**given, one_shot=method), tmp_path / method)
        assert results[method]["nonzero"] == round(results[method]["prunable"] * 0.2)
        assert read_settings(tmp_path / method).option("one_shot") == method
    assert results["obs"]["test_accuracy"] > results["magnitude"]["test_accuracy"]
    (dense,) = (folder for folder in tmp_path.iterdir() if folder.name not in results)
    assert read_result(dense)["sparsity"] == 0
    again = train(make_settings(**given, one_shot="obs"), tmp_path / "obs")
    assert again == json.loads((tmp_path / "obs" / "result.json").read_text())
    with pytest.raises(LabError, match="one_shot"):
        train(make_settings(**given, one_shot="wanda"), tmp_path / "obs")

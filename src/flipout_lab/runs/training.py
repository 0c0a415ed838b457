"""A run: training and pruning one network in one folder, resumed where it was interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout

from .. import data
from ..data.batches import augment, prepare
from ..errors import DivergedError, LabError, StoppedError
from ..files import remove_leftovers, write_bytes, write_json
from . import run_folder
from .networks import build_model, evaluate, without_model
from .one_shot import dense_settings, prune_run, read_trained
from .pruning import attach, learning_rate, make_optimizer, measure_epoch, measure_result, shrinking
from .run_views import View
from .settings import Settings, validated
from .trackers import Tracker

WAIT = -1.0
"""The patience of a run that needs the network of another one."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set an event on Ctrl-C or SIGTERM, to stop after the current step. A second signal stops the process at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping  # only the main thread can handle signals
        return

    def ask(number: int, _: object) -> None:
        if stopping.is_set():
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(
    settings: Settings,
    folder: Path | str,
    *,
    view: View | None = None,
    trackers: Sequence[Tracker] = (),
    patience: float = 0.0,
) -> dict[str, Any]:
    """Train and prune a network, or resume an interrupted run, and return its result.

    A finished run is not run again. A run that is killed at any moment and resumed ends with the same
    `model.safetensors`, byte for byte, on the same machine with the same number of threads.

        >>> settings = flipout_lab.make_settings(model="mlp", method="magnitude", sparsity=0.9, epochs=1, threads=1)
        >>> result = flipout_lab.train(settings, "runs/one")
        >>> result["nonzero"], result["prunable"]
        (5043, 50432)
        >>> network = flipout_lab.load_run("runs/one")

    Args:
        settings: the settings; `make_settings` makes them.
        folder: the folder of the run.
        view: what shows the progress; nothing by default.
        trackers: what receives the metrics; see `Tracker`.
        patience: how many seconds to wait for another process that is training in the folder.
    """
    folder = Path(folder)
    run_folder.prepare_folder(folder)
    with run_folder.locked(folder / run_folder.LOCK, patience=patience):
        run_folder.compare(folder, settings)
        if (folder / run_folder.RESULT).exists():
            if not (folder / run_folder.MODEL).exists():
                warnings.warn(without_model(folder), stacklevel=2)
            return run_folder.read_result(folder)
        remove_leftovers(folder)
        remove_leftovers(folder / run_folder.CHECKPOINTS)
        if settings.option("one_shot") is not None:
            return _one_shot(settings, folder, view, trackers)
        run = Run(settings, folder, view or View(), trackers)
        try:
            # Not before the run is set up: invalid settings must not block a second attempt in the same folder.
            run_folder.write_config(folder, settings, run.data)
            return run.train()
        finally:
            run.close()


def _one_shot(settings: Settings, folder: Path, view: View | None, trackers: Sequence[Tracker]) -> dict[str, Any]:
    """Prune the dense network of these settings, which is trained once, in the folder beside this one."""
    dense = dense_settings(settings)
    source = folder.parent / dense.folder_name()
    train(dense, source, view=view, patience=WAIT)
    for tracker in trackers:
        tracker.start(folder, settings.as_dict(), 0)
    method, recalibrate = settings.option("one_shot"), settings.option("recalibrate")
    options = {"sparsity": settings.sparsity, "method": method, "recalibrate": recalibrate, "seed": settings.seed}
    _, result = prune_run(read_trained(source), folder, settings, options)
    for tracker in trackers:
        tracker.finish(result)
    return result


class Run:
    """One training run: the network, its data, optimizer and pruner, and how far it is."""

    def __init__(self, settings: Settings, folder: Path, view: View, trackers: Sequence[Tracker]) -> None:
        self.settings, self.folder, self.view, self.trackers = settings, folder, view, trackers
        self.device = choose_device(settings)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.data = data.load(settings.data, settings.image_size)
        self.train_set, self.held_out = prepare(self.data, self.device, validate=settings.validate_)
        torch.manual_seed(settings.seed)
        self.model = build_model(settings, self.data).to(self.device)
        self.optimizer = make_optimizer(settings, self.model)
        self.steps_per_epoch = math.ceil(len(self.train_set) / settings.batch_size)
        # Attached before the pruner, to see each step before a pruning changes the weights.
        self.aim = flipout.AimTest(self.model, self.optimizer) if settings.aim else None
        self.pruner = attach(settings, self.model, self.optimizer, self.steps_per_epoch, self._batches)
        self.shrink = shrinking(settings, self.pruner)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.amp)
        self.total = settings.total_epochs * self.steps_per_epoch
        self.step, self.loss_sum, self.seconds, self.processor = 0, torch.zeros((), device=self.device), 0.0, 0.0
        self.metrics: list[dict[str, Any]] = []
        if (state := run_folder.load_checkpoint(folder / run_folder.CHECKPOINTS)) is not None:
            self._resume(state)

    def train(self) -> dict[str, Any]:
        """Train to the end and write the result."""
        for tracker in self.trackers:
            tracker.start(self.folder, self.settings.as_dict(), len(self.metrics))
        self._write_metrics()
        settings = self.settings
        self.view.start(f"{settings.data} {settings.model} {settings.method}", self.total, self.step)
        with stop_signals() as stopping:
            while self.step < self.total:
                try:
                    self._end_of_epoch(self._steps(stopping))
                except FloatingPointError as error:  # raised by the pruner for NaN weights
                    raise DivergedError(f"training has diverged: {error}") from error
                if stopping.is_set() and self.step < self.total:
                    raise StoppedError(f"stopped after an epoch, at step {self.step:,} of {self.total:,}, and saved")
        self.pruner.expand()
        result = self._result()
        write_bytes(self.folder / run_folder.MODEL, run_folder.model_bytes(self.model))
        write_json(self.folder / run_folder.RESULT, result)
        run_folder.remove_checkpoints(self.folder / run_folder.CHECKPOINTS)
        for tracker in self.trackers:
            tracker.finish(result)
        return result

    def close(self) -> None:
        """Detach the pruner. The warning about an unfinished schedule is left out: the run reports why it stopped."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", flipout.UnfinishedWarning)
            self.pruner.remove()
        if self.aim is not None:
            self.aim.remove()

    def _steps(self, stopping: threading.Event) -> float:
        """Take the remaining steps of an epoch; return the last learning rate."""
        settings, rate = self.settings, 0.0
        epoch, done = divmod(self.step, self.steps_per_epoch)
        augmented = settings.augment and (self.data.flip or self.data.crop)
        pruner: Any = self.pruner
        penalty: Callable[[], Tensor] | None = pruner.penalty if settings.record.needs.penalty else None
        self.model.train()
        batches = self.train_set.shuffled(settings.batch_size, seed=settings.seed, epoch=epoch, skip=done)
        wall, processor = self.seconds - time.monotonic(), self.processor - time.process_time()
        for images, labels in batches:
            if augmented:
                images = augment(images, flip=self.data.flip, crop=self.data.crop, seed=settings.seed, step=self.step)
            rate = learning_rate(settings, self.pruner, self.step, self.steps_per_epoch)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(self.device.type, enabled=settings.amp):
                loss = nn.functional.cross_entropy(self.model(images), labels)
            self.loss_sum += loss.detach() * len(labels)
            if penalty is not None:
                loss = loss + penalty()
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.shrink(images)
            self.step += 1
            self.view.step(self.step)
            if stopping.is_set() and self.step % self.steps_per_epoch:
                self.seconds, self.processor = wall + time.monotonic(), processor + time.process_time()
                self._save()
                raise StoppedError(f"stopped at step {self.step:,} of {self.total:,}, and saved")
        self.seconds, self.processor = wall + time.monotonic(), processor + time.process_time()
        return rate

    def _end_of_epoch(self, rate: float) -> None:
        loss = float(self.loss_sum) / len(self.train_set)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss is {loss} in epoch {len(self.metrics) + 1}: training has diverged. Lower --learning-rate, "
                "or --noise if it is relative to the weights; the last good checkpoint is kept"
            )
        self.loss_sum.zero_()
        accuracy, computed = evaluate(self.model, self.held_out), self.pruner.computed
        with self.pruner.expanded():
            line = self._measured(loss, accuracy, computed, rate)
            self.metrics.append(line)
            self._write_metrics()
            self._save()
        self.view.epoch(line)
        for tracker in self.trackers:
            tracker.log(line)

    def _measured(self, loss: float, accuracy: float, computed: int, rate: float) -> dict[str, Any]:
        """The line of an epoch in `metrics.jsonl`."""
        return {
            "epoch": len(self.metrics) + 1,
            "step": self.step,
            "loss": loss,
            "test_accuracy": None if self.settings.validate_ else accuracy,
            "validation_accuracy": accuracy if self.settings.validate_ else None,
            **measure_epoch(self.pruner),
            "computed": computed,
            "learning_rate": rate,
            "seconds": round(self.seconds, 3),
            "epoch_seconds": round(self.seconds - (self.metrics[-1]["seconds"] if self.metrics else 0.0), 3),
        }

    def _result(self) -> dict[str, Any]:
        """The content of `result.json`. The accuracy is that of the last epoch."""
        settings, last, aim = self.settings, self.metrics[-1], self.aim
        shots = None
        if aim is not None:
            counts = {"over_shoots": aim.over_shoots, "under_shoots": aim.under_shoots}
            shots = {kind: sum(int(count.sum()) for count in of.values()) for kind, of in counts.items()}
        return {
            "version": flipout.__version__,
            "method": settings.method,
            "data": settings.data,
            "model": settings.model,
            "seed": settings.seed,
            "epochs": settings.total_epochs,
            **measure_result(self.pruner, self.model, torch.zeros(1, *self.data.shape, device=self.device)),
            "test_accuracy": last["test_accuracy"],
            "validation_accuracy": last["validation_accuracy"],
            "accuracy_of": "last epoch",
            "loss": last["loss"],
            "aim": shots,
            "computed": last["computed"],
            "seconds": round(self.seconds, 3),
            "processor_seconds": round(self.processor, 3),
        }

    def _save(self) -> None:
        """Write a checkpoint. It has all channels of the network, and says which of them are there while it trains."""
        with self.pruner.expanded():
            run_folder.save_checkpoint(self.folder / run_folder.CHECKPOINTS, self.step, self._state())

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own, in the order in which it is restored."""
        parts = {"model": self.model, "optimizer": self.optimizer, "pruner": self.pruner, "scaler": self.scaler}
        return parts if self.aim is None else {**parts, "aim": self.aim}

    def _state(self) -> dict[str, Any]:
        return {
            "settings": self.settings.as_dict(),
            "step": self.step,
            "loss_sum": self.loss_sum.clone(),
            "seconds": self.seconds,
            "processor_seconds": self.processor,
            "metrics": self.metrics,
            **{name: part.state_dict() for name, part in self._parts().items()},
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def _resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. One of other settings is an error: `config.json` may have been deleted."""
        advice = f"delete {self.folder / run_folder.CHECKPOINTS} to start the run again, or choose another --out"
        if validated(state.get("settings", {}), stored=True).non_defaults() != self.settings.non_defaults():
            raise LabError(f"the checkpoints in {self.folder} are of a run with other settings; {advice}")
        try:
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self.step, self.metrics = state["step"], state["metrics"]
            self.seconds, self.processor = state["seconds"], state["processor_seconds"]
            self.loss_sum.copy_(state["loss_sum"])
            torch.set_rng_state(state["random"])
            if state["cuda_random"] is not None:
                torch.cuda.set_rng_state(state["cuda_random"], self.device)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise LabError(f"the checkpoints in {self.folder} do not fit this run ({reason}); {advice}") from error

    def _write_metrics(self) -> None:
        write_bytes(
            self.folder / run_folder.METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics).encode()
        )

    def _batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        batches = self.train_set.shuffled(self.settings.batch_size, seed=self.settings.seed, epoch=-1)
        return islice(batches, count)


def choose_device(settings: Settings) -> torch.device:
    """Return the device of a run; one that is not available is an error."""
    try:
        device = torch.device(settings.device)
        float(torch.zeros(1, device=device))  # the device "meta" has no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise LabError(f"--device {settings.device} is not available here: {reason}") from error
    if settings.amp and device.type == "cpu":
        raise LabError("--amp needs a GPU: give --device cuda, or leave it out")
    return device

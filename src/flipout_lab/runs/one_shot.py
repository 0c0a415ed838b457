"""One-shot pruning of a trained network: from a run, or from a safetensors file, to the folder of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout

from ..data import Data, load
from ..data.batches import Images, prepare
from ..errors import LabError
from ..files import write_bytes, write_json
from ..tables import Table
from . import run_folder
from .pruning import measure_result
from .settings import Settings, make_settings
from .training import build_model, evaluate, load_run

BATCH = 100


@dataclass(frozen=True)
class Trained:
    """A trained network with its data.

    Args:
        settings: those of its run.
        model: the network, in evaluation mode.
        data: its data set.
        train: the images that it was trained with.
        held_out: the images that it is measured on.
    """

    settings: Settings
    model: nn.Module
    data: Data
    train: Images
    held_out: Images

    def batches(self, examples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Calibration batches: random training images, as they are."""
        number = -(-min(examples, len(self.train)) // BATCH)
        shuffled = self.train.shuffled(min(BATCH, examples), seed=seed, epoch=-1)
        return [batch for batch, _ in zip(shuffled, range(number), strict=False)]


def read_trained(source: Path, **network: Any) -> Trained:
    """Read the network of a run, or of a safetensors file with the name of its network and data."""
    if source.is_dir():
        if stated := [key for key, value in network.items() if value is not None]:
            raise LabError(f"--{stated[0]} belongs to a safetensors file: {source} is a run, which knows it")
        settings, model = run_folder.read_settings(source), load_run(source)
        data = load(settings.data, settings.image_size)
    else:
        if network.get("model") is None:
            raise LabError(
                f"{source} is not the folder of a run; for a safetensors file, give its network with --model"
            )
        given = {key: value for key, value in network.items() if value is not None}
        settings = make_settings(method="dense", init=str(source), **given)
        data = load(settings.data, settings.image_size)
        model = build_model(settings, data).eval()
    train, held_out = prepare(data, torch.device("cpu"), validate=settings.validate_)
    return Trained(settings, model, data, train, held_out)


def prune_run(trained: Trained, out: Path, examples: int, options: dict[str, Any]) -> tuple[flipout.PruneReport, Table]:
    """Prune a network, measure it before and after, and write the folder of a run."""
    if (out / run_folder.CONFIG).exists():
        raise LabError(f"{out} holds a run; choose another --out")
    model, before = trained.model, evaluate(trained.model, trained.held_out)
    try:
        report = flipout.prune(
            model, trained.batches(examples, options["seed"]), loss_fn=nn.functional.cross_entropy, **options
        )
    except (ValueError, FloatingPointError) as error:  # the library names the fix
        raise LabError(str(error)) from error
    after = evaluate(model, trained.held_out)
    run_folder.prepare_folder(out)
    settings = trained.settings
    write_bytes(out / run_folder.MODEL, run_folder.model_bytes(model))
    write_json(out / run_folder.RESULT, _result(trained, report, after))
    kept = {key: value for key, value in options.items() if key != "progress"}
    write_json(
        out / run_folder.CONFIG,
        {
            "settings": settings.as_dict(),
            "network": {"shape": list(trained.data.shape), "classes": trained.data.classes},
            "versions": run_folder.versions(),
            "one_shot": {**kept, "examples": examples},
        },
    )
    rows = [
        ("weights kept", f"{report.nonzero:,} of {report.prunable:,}"),
        ("sparsity", f"{report.sparsity:.4%}"),
        (f"{_measured_on(settings)} accuracy before", f"{before:.2%}"),
        (f"{_measured_on(settings)} accuracy after", f"{after:.2%}"),
        ("seconds", f"{report.seconds:.1f}"),
        ("to fine-tune it", f"flipout train --method keep-zeros --init {out / run_folder.MODEL} ..."),
    ]
    return report, Table("", (), rows, texts=(0, 1))


def _measured_on(settings: Settings) -> str:
    return "validation" if settings.validate_ else "test"


def _result(trained: Trained, report: flipout.PruneReport, accuracy: float) -> dict[str, Any]:
    """The content of `result.json`, so that a pruned network is a finished run to every other command."""
    model, settings = trained.model, trained.settings
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.KeepZeros(model, optimizer, include=[layer.name for layer in report.layers])
    measured = measure_result(pruner, model, torch.zeros(1, *trained.data.shape))
    pruner.remove()
    return {
        "version": flipout.__version__,
        "method": report.method,
        "data": settings.data,
        "model": settings.model,
        "seed": settings.seed,
        "epochs": 0 if settings.init is not None else settings.total_epochs,
        **measured,
        "test_accuracy": None if settings.validate_ else accuracy,
        "validation_accuracy": accuracy if settings.validate_ else None,
        "accuracy_of": "one-shot pruning",
        "loss": None,
        "aim": None,
        "computed": report.prunable,
        "seconds": round(report.seconds, 3),
    }

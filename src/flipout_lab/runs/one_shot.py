"""One-shot pruning of a trained network: from a run, or from a safetensors file, to the folder of a run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout

from ..data import Data, load
from ..data.batches import Images, prepare
from ..errors import LabError
from ..files import write_bytes, write_json
from . import run_folder
from .networks import build_model, evaluate, load_run
from .pruning import measure_result
from .settings import Settings, make_settings, validated

BATCH = 100
EXAMPLES = 1000
"""How many training images a network is calibrated with, unless another number is given."""


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
        return list(islice(shuffled, number))


def dense_settings(settings: Settings) -> Settings:
    """The settings of the dense network that a run with `one_shot` prunes."""
    return validated({**settings.base(), "method": "dense", "sparsity": 0.0})


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


def prune_run(
    trained: Trained, out: Path, settings: Settings, options: dict[str, Any], examples: int = EXAMPLES
) -> tuple[flipout.PruneReport, dict[str, Any]]:
    """Prune a network, measure it, and write the folder of a run with these settings. Return also its result."""
    batches = trained.batches(examples, options["seed"])
    try:
        report = flipout.prune(trained.model, batches, loss_fn=nn.functional.cross_entropy, **options)
    except (ValueError, FloatingPointError) as error:  # the library names the fix
        raise LabError(str(error)) from error
    result = _result(trained, report)
    run_folder.prepare_folder(out)
    write_bytes(out / run_folder.MODEL, run_folder.model_bytes(trained.model))
    kept = {key: value for key, value in options.items() if key != "progress"}
    run_folder.write_config(out, settings, trained.data, one_shot={**kept, "examples": examples})
    write_json(out / run_folder.RESULT, result)
    return report, result


def _result(trained: Trained, report: flipout.PruneReport) -> dict[str, Any]:
    """The content of `result.json`, so that a pruned network is a finished run to every other command."""
    model, settings = trained.model, trained.settings
    accuracy = evaluate(model, trained.held_out)
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

"""The network of a run: built from its settings, read from its folder, and evaluated."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..data import Data
from ..data.batches import Images
from ..errors import LabError
from ..models import build
from . import run_folder
from .settings import Settings


def build_model(settings: Settings, loaded: Data) -> nn.Module:
    model = build(settings.model, loaded.shape, loaded.classes, settings.width)
    if settings.init is not None:
        run_folder.load_weights(model, Path(settings.init))
    return model


@torch.no_grad()
def evaluate(model: nn.Module, images: Images, batch_size: int = 1000) -> float:
    """Return the accuracy: the share of images that are classified correctly."""
    mode = model.training
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum() for x, y in images.in_order(batch_size))
    model.train(mode)
    return float(correct) / len(images)


def load_run(folder: Path | str) -> nn.Module:
    """Return the trained network of a finished run, on the CPU and in evaluation mode. The data set is not read."""
    folder = Path(folder)
    settings = run_folder.read_settings(folder)
    if not (folder / run_folder.MODEL).exists():
        if (folder / run_folder.RESULT).exists():
            raise LabError(without_model(folder))
        raise LabError(
            f"{folder} has no {run_folder.MODEL}: the run is not finished; run the same command again to resume it"
        )
    model = build(settings.model, *run_folder.network_shape(folder), settings.width)
    run_folder.load_weights(model, folder / run_folder.MODEL)
    return model.eval()


def without_model(folder: Path) -> str:
    return (
        f"the run in {folder} is finished, but its {run_folder.MODEL} was deleted: restore the file, or delete "
        f"{folder / run_folder.RESULT} and run the same command again to train the network again"
    )

"""Check the options of a method before its run starts: a grid with an invalid run is refused when it is read."""

from __future__ import annotations

import json
import math
import warnings
from functools import lru_cache

import torch
from torch import nn

from flipout.granularity import as_granularity

from ..data import DATA
from ..data.batches import validation_size
from .pruning import attach
from .settings import Settings, validated
from .training import make_optimizer

WITHOUT_EFFECT = ("seed", "threads", "device", "amp", "aim", "init", "width")
"""Settings that do not decide whether the options of a method are valid."""

LAYER = 64
"""The side of the only layer of the network that options are tried on."""


def check_method_options(settings: Settings) -> None:
    """Attach a method of flipout to a tiny network with the steps of the run. Invalid options are a LabError.

    A method of the user is not tried: its constructor may need the real network. Options that depend on the size of
    the network (`floor`, and a sparsity that leaves hardly a weight) are checked when the run starts.
    """
    if ":" in settings.method or not settings.record.cls.__module__.startswith("flipout."):
        return
    values = {key: value for key, value in settings.as_dict().items() if key not in (*WITHOUT_EFFECT, "floor")}
    if settings.sparsity is not None:
        pattern = as_granularity(settings.option("granularity") or "weight").kind == "pattern"
        values["sparsity"] = settings.sparsity if pattern else min(settings.sparsity, 0.5)
    _try_options(json.dumps({**values, "compile": "no"}))


@lru_cache(maxsize=4096)  # the runs of a grid differ in the seed
def _try_options(content: str) -> None:
    settings = validated(json.loads(content), stored=True)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        model = nn.Linear(LAYER, LAYER)
        batch = torch.zeros(2, LAYER), torch.zeros(2, dtype=torch.long)
        attach(settings, model, make_optimizer(settings, model), _steps_per_epoch(settings), lambda _: [batch]).remove()


def _steps_per_epoch(settings: Settings) -> int:
    """The steps of an epoch; many if the size of the data set is not known before it is read."""
    if settings.data not in DATA:
        return 1_000_000
    images = DATA[settings.data].train
    if settings.validate_:
        images -= validation_size(settings.data, images)
    return math.ceil(images / settings.batch_size)

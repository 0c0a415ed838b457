"""The lab: data, networks and training runs that compare pruning methods under the same budget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Data, load
    from .errors import LabError
    from .models.model_catalogue import build
    from .runs.networks import load_run
    from .runs.settings import Settings, make_settings
    from .runs.trackers import Tracker
    from .runs.training import train

__all__ = ["Data", "LabError", "Settings", "Tracker", "build", "load", "load_run", "make_settings", "train"]

HOMES = {
    "Data": "data",
    "LabError": "errors",
    "Settings": "runs.settings",
    "Tracker": "runs.trackers",
    "build": "models",
    "load": "data",
    "load_run": "runs.networks",
    "make_settings": "runs.settings",
    "train": "runs.training",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that the command line can explain which of the lab's dependencies is missing."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)

"""Callbacks for training frameworks. Import the one that you need, such as `flipout.integrations.lightning`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TRAINERS = ("lightning", "transformers")


def __getattr__(name: str) -> Any:
    """Import a trainer's callback when it is asked for: `flipout.integrations.lightning.Prune`."""
    if name in TRAINERS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(TRAINERS)}")

"""The state of a pruner as plain data: everything needed to continue a training bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .events import Event
from .plain_data import describe, difference

if TYPE_CHECKING:
    from .pruner import Pruner

KEYS = ("settings", "step", "compiled", "masks", "statistics", "events", "extra")


def save_state(pruner: Pruner) -> dict[str, Any]:
    """Copy the state of a pruner."""
    return {
        "settings": describe(pruner.settings()),
        "step": pruner.step,
        "compiled": pruner.runner.compiled,
        "masks": _clones(pruner.masks),
        "statistics": {
            key: {layer.name: _clones(layer.statistics[key].state) for layer in pruner.layers} for key in pruner.tracked
        },
        "events": [event._asdict() for event in pruner.events],
        "extra": {key: _clones(tensors) for key, tensors in pruner.extra_state().items()},
    }


def check_state(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit the pruner."""
    if missing := [key for key in KEYS if key not in state]:
        raise ValueError(f"this is not the state of a pruner: it has no {', '.join(sorted(missing))}")
    if lines := difference(state["settings"], describe(pruner.settings())):
        raise ValueError("the state was saved with other settings than this pruner's:\n  " + "\n  ".join(lines))
    for layer in pruner.layers:
        _check_tensor(f"the mask of {layer.name}", state["masks"].get(layer.name), layer.mask)
        for key, statistic in layer.statistics.items():
            saved = state["statistics"].get(key, {}).get(layer.name, {})
            for part, tensor in statistic.state.items():
                _check_tensor(f"{key}.{part} of {layer.name}", saved.get(part), tensor)


def _check_tensor(what: str, saved: Any, here: Tensor) -> None:
    if not isinstance(saved, Tensor):
        raise ValueError(f"the state has no tensor for {what}")
    if saved.shape != here.shape:
        raise ValueError(f"{what} has shape {tuple(saved.shape)} in the state and {tuple(here.shape)} here")


@torch.no_grad()
def load_masks_and_statistics(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Copy masks and statistics into the layers of a pruner, zero the pruned weights, and restore the events."""
    for layer in pruner.layers:
        layer.mask.copy_(state["masks"][layer.name])
        layer.count()
        layer.zero()
        for key, statistic in layer.statistics.items():
            for part, tensor in statistic.state.items():
                tensor.copy_(state["statistics"][key][layer.name][part])
            statistic.loaded()
    pruner.events[:] = [Event(**event) for event in state["events"]]


def _clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.detach().clone() for key, tensor in tensors.items()}

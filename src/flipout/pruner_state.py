"""The state of a pruner as plain data: everything needed to continue a training bit for bit.

Its keys and the shapes of its tensors are the same at every step, and everything that grows or differs between pruners
is one string. So `torch.distributed.checkpoint`, which loads into the state of a new pruner, finds a place for
everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .events import Event
from .hidden_values import no_hidden_values
from .layers import Layer, count_layers, count_marks
from .plain_data import describe, difference
from .shards.parts import on_any_rank
from .statistics import Statistic

if TYPE_CHECKING:
    from .pruner import Pruner

KINDS: dict[str, tuple[type, str]] = {
    "settings": (str, "a string"),
    "step": (int, "an integer"),
    "compiled": (bool, "a boolean"),
    "masks": (Mapping, "a dict"),
    "statistics": (Mapping, "a dict"),
    "events": (str, "a string"),
    "hidden": (Mapping, "a dict"),
    "extra": (Mapping, "a dict"),
    "shrunk": (str, "a string"),
}
"""What a state consists of."""


def save_state(pruner: Pruner) -> dict[str, Any]:
    """Copy the state of a pruner."""
    return {
        "settings": json.dumps(describe(pruner.settings())),
        "step": pruner.step,
        "compiled": pruner.runner.compiled,
        "events": json.dumps([event._asdict() for event in pruner.events]),
        "shrunk": pruner.shrunk_state().as_text(),
        **_copy(tensors_of(pruner)),
    }


def tensors_of(pruner: Pruner) -> dict[str, Any]:
    """The tensors of a pruner, in the form in which they are saved."""
    return {
        "masks": pruner.masks,
        "statistics": {
            key: {layer.name: _state_of(layer, layer.statistics[key]) for layer in pruner.layers}
            for key in pruner.tracked
        },
        "hidden": {layer.name: _hidden(layer) for layer in pruner.layers if pruner.revival is not None},
        "extra": pruner.extra_state(),
    }


def _hidden(layer: Layer) -> dict[str, Tensor]:
    """The hidden values of a layer; zeros where there are none, so that a state has the same tensors at every step."""
    hidden = layer.hidden or no_hidden_values(layer.local)
    return {"values": layer.as_weight(hidden.values), "threshold": hidden.threshold, "ceiling": hidden.ceiling}


def _state_of(layer: Layer, statistic: Statistic) -> dict[str, Tensor]:
    """The state of a statistic: numbers of each weight in the layout of the weight, and what is shared as it is."""
    elements = {part: layer.as_weight(tensor) for part, tensor in statistic.elements.items()}
    return {part: elements.get(part, tensor) for part, tensor in statistic.state.items()}


def check_state(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit the pruner. Nothing is changed."""
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not the state of a pruner, but a {type(state).__name__}")
    if missing := [key for key in KINDS if key not in state]:
        raise ValueError(f"this is not the state of a pruner: it has no {', '.join(sorted(missing))}")
    for key, (kind, name) in KINDS.items():
        if not isinstance(state[key], kind) or (kind is int and isinstance(state[key], bool)):
            raise ValueError(f"`{key}` of the state is a {type(state[key]).__name__}; it must be {name}")
    if lines := difference(_read_settings(state["settings"]), describe(pruner.settings())):
        raise ValueError("the state was saved with other settings than this pruner's:\n  " + "\n  ".join(lines))
    if state["step"] < 0:
        raise ValueError(f"`step` of the state is {state['step']}; it must be at least 0")
    if len(events := read_events(state["events"])) > len(pruner.plan()):
        raise ValueError(f"the state has {len(events)} pruning events, but {len(pruner.plan())} are planned")
    pruner.check_shrunk_state(state["shrunk"])
    for key, here in tensors_of(pruner).items():
        _check_tensors(key, state[key], here)
    _check_parts(pruner, state["masks"], events)


def _check_parts(pruner: Pruner, masks: Mapping[str, Tensor], events: Sequence[Event]) -> None:
    """Refuse the parts of another rank, on every rank: the masks of all ranks must add up to what was kept."""
    if not any(pruner.pieces):
        return
    parts = [layer.part_of(masks[layer.name]) for layer in pruner.layers]
    fitting = all(part.shape == layer.mask.shape for part, layer in zip(parts, pruner.layers, strict=True))
    if not on_any_rank(not fitting, pruner.pieces):
        kept = count_marks(parts, pruner.layers)
        if not events or kept == [events[-1].kept[layer.name] for layer in pruner.layers]:
            return
    raise ValueError(
        "the masks of the state do not belong to the parts of the weights that the ranks hold here. Was it saved by "
        "one rank alone, with torch.save()? Save and load sharded weights with torch.distributed.checkpoint, which "
        "also works for other numbers of ranks"
    )


def _read_settings(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("`settings` of the state is not JSON") from None


def _check_tensors(path: str, saved: Any, here: Any) -> None:
    """Compare tensors in dicts of any depth: the same names, shapes and dtypes."""
    if isinstance(here, Mapping):
        if not isinstance(saved, Mapping):
            raise ValueError(f"{path} is a {type(saved).__name__} in the state; it must be a dict")
        if missing := [name for name in here if name not in saved]:
            raise ValueError(f"the state has no tensor for {path} of {', '.join(map(str, missing))}")
        if unknown := [name for name in saved if name not in here]:
            raise ValueError(f"the state has {path} of {', '.join(map(str, unknown))}, which this pruner does not have")
        for name, value in here.items():
            _check_tensors(f"{path} of {name}", saved[name], value)
        return
    if not isinstance(saved, Tensor):
        raise ValueError(f"{path} is a {type(saved).__name__} in the state; it must be a tensor")
    if saved.is_meta or saved.layout != torch.strided:
        raise ValueError(f"{path} has no values in the state, or is a sparse tensor; it must be an ordinary tensor")
    if saved.shape != here.shape:
        raise ValueError(f"{path} has shape {tuple(saved.shape)} in the state and {tuple(here.shape)} here")
    if saved.dtype != here.dtype:
        raise ValueError(f"{path} is of {saved.dtype} in the state and of {here.dtype} here")


def read_events(text: str) -> list[Event]:
    """Read the events of a state."""
    try:
        events = [Event(**record) for record in json.loads(text)]
    except (ValueError, TypeError):
        raise ValueError("`events` of the state is not a JSON list of pruning events") from None
    for event in events:
        whole = (event.step, event.nonzero, event.grown, *(event.kept.values() if isinstance(event.kept, dict) else ()))
        numbers = all(type(number) is int for number in whole) and isinstance(event.sparsity, int | float)
        if not numbers or not isinstance(event.kept, dict):
            raise ValueError(f"`events` of the state has an event that is not one: {event}")
    return events


@torch.no_grad()
def load_masks_and_statistics(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Copy masks, statistics and hidden values into the layers of a pruner, zero the pruned weights, and restore the
    events."""
    pruner.events[:] = read_events(state["events"])
    for layer in pruner.layers:
        layer.mask.copy_(layer.part_of(state["masks"][layer.name]))
        layer.zero()
        layer.hidden = None
        if pruner.revival is not None and pruner.regrows and pruner.events:
            layer.hidden = no_hidden_values(layer.local)
            hidden, saved = layer.hidden, state["hidden"][layer.name]
            hidden.values.copy_(layer.part_of(saved["values"]))
            hidden.threshold.copy_(saved["threshold"])
            hidden.ceiling.copy_(saved["ceiling"])
        for key, statistic in layer.statistics.items():
            for part, tensor in statistic.state.items():
                saved = state["statistics"][key][layer.name][part]
                tensor.copy_(layer.part_of(saved) if part in statistic.elements else saved)
            statistic.loaded()
    count_layers(pruner.layers)


def _copy(tensors: Any) -> Any:
    if isinstance(tensors, Tensor):
        return tensors.detach().clone()
    return {key: _copy(value) for key, value in tensors.items()}

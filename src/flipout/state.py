"""The state of a pruner as plain data: everything needed to continue a training bit for bit.

Its keys and the shapes of its tensors are the same at every step, and everything that grows or differs between pruners
is one string. So `torch.distributed.checkpoint`, which loads into the state of a new pruner, finds a place for
everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .events import Event
from .host import Host
from .kernels import read_saved
from .modules import named_tensors
from .plain_data import describe, difference
from .problems import Need
from .runtime.kernels import Kernels
from .statistics import Statistic
from .version import __version__
from .views import on_any_rank
from .weights import Weight, count_marks, count_weights

KINDS: dict[str, tuple[type, str]] = {
    "version": (str, "a string"),
    "settings": (str, "a string"),
    "step": (int, "an integer"),
    "compiled": (bool, "a boolean"),
    "in_c": (bool, "a boolean"),
    "masks": (Mapping, "a dict"),
    "statistics": (Mapping, "a dict"),
    "events": (str, "a string"),
    "form": (Mapping, "a dict"),
    "extra": (Mapping, "a dict"),
    "shrunk": (str, "a string"),
    "sparse_kernels": (str, "a string"),
    "units": (str, "a string"),
}
"""What a state consists of."""

OWN_COUNTS = frozenset[Need]({"whole network", "own prune", "own records"})
"""Methods with these needs may change masks without an event, or record events in their own way."""

GROWTH = frozenset[Need]({"own choice", "own events", "own records"})
"""Methods with these needs may keep more weights after an event than before it."""


def save_state(pruner: Host, kernels: Kernels, shrunk: str) -> dict[str, Any]:
    """Copy the state of a pruner."""
    return {
        "version": __version__,
        "settings": json.dumps(describe(pruner.settings())),
        "step": pruner.step,
        "compiled": kernels.compiled,
        "in_c": kernels.in_c,
        "events": json.dumps([event._asdict() for event in pruner.events]),
        "shrunk": shrunk,
        "sparse_kernels": pruner.sparse_kernels.saved(),
        "units": pruner.units.saved(),
        **_copy(tensors_of(pruner)),
    }


def tensors_of(pruner: Host) -> dict[str, Any]:
    """The tensors of a pruner, in the form in which they are saved."""
    return {
        "masks": pruner.masks,
        "statistics": {
            key: {weight.name: _state_of(weight, weight.statistics[key]) for weight in pruner.weights}
            for key in pruner.statistics
        },
        "form": {weight.name: _slots_of(pruner, weight) for weight in pruner.weights},
        "extra": pruner.extra_state(),
    }


def _slots_of(pruner: Host, weight: Weight) -> dict[str, Tensor]:
    """The slots of a weight: those of each element in the layout of the weight, and what is shared as it is."""
    shared, slots = pruner.form.shared, pruner.form.saved(weight)
    return {key: slot if key in shared else weight.view.shown(slot) for key, slot in slots.items()}


def _state_of(weight: Weight, statistic: Statistic) -> dict[str, Tensor]:
    """The state of a statistic: numbers of each element in the layout of the weight, and what is shared as it is."""
    elements = {key: weight.view.shown(tensor) for key, tensor in statistic.elements.items()}
    return {key: elements.get(key, tensor) for key, tensor in statistic.state.items()}


def check_state(pruner: Host, state: Mapping[str, Any], *, starts_dense: bool) -> None:
    """Refuse a state that does not fit the pruner. Nothing is changed.

    `starts_dense` is whether nothing is pruned before the first event.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not what pruner.state_dict() returns, but a {type(state).__name__}")
    if missing := [key for key in KINDS if key not in state]:
        raise ValueError(f"this is not what pruner.state_dict() returns: it has no {', '.join(sorted(missing))}")
    for key, (kind, name) in KINDS.items():
        if not isinstance(state[key], kind) or (kind is int and isinstance(state[key], bool)):
            raise ValueError(f"`{key}` of the state is a {type(state[key]).__name__}; it must be {name}")
    if lines := difference(_read_settings(state["settings"]), describe(pruner.settings())):
        raise ValueError(
            "the state was saved with other settings. Create the pruner with the same ones:\n  " + "\n  ".join(lines)
        )
    if state["step"] < 0:
        raise ValueError(f"`step` of the state is {state['step']}; it must be at least 0")
    if len(events := read_events(state["events"])) > len(pruner.plan()):
        raise ValueError(f"the state has {len(events)} pruning events, but {len(pruner.plan())} are planned")
    read_saved(state["sparse_kernels"])
    pruner.units.check(state["units"])
    for key, here in tensors_of(pruner).items():
        _check_tensors(f"state[{key!r}]", state[key], here)
    for weight in pruner.weights:
        for key, slot in state["form"][weight.name].items():
            if weight.view.key is None and slot.is_floating_point() and not slot.isfinite().all():
                raise ValueError(
                    f"the state has NaN or infinity in `{key}` of {weight.name}: the training had diverged when it was "
                    "saved. Load an earlier checkpoint"
                )
    _check_extra(pruner, state["extra"])
    if "own records" not in pruner.needs():
        _check_events(pruner, events, state["step"])
    _check_masks(pruner, state["masks"], events, starts_dense)


def _check_extra(pruner: Host, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse values of trained parameters that no network can compute with. (A buffer, or a parameter that is not
    trained, may hold an infinity, such as a mask of attention.)"""
    trained = {name for name, tensor in named_tensors(pruner.model).items() if tensor.requires_grad}
    for key, values in extra.items():
        for name in trained & values.keys():
            if values[name].is_floating_point() and not values[name].isfinite().all():
                raise ValueError(
                    f"the state has NaN or infinity in `{key}` of {name}: the training had diverged when it was saved. "
                    "Load an earlier checkpoint"
                )


def _check_events(pruner: Host, events: Sequence[Event], step: int) -> None:
    """Refuse records that no training can have: other weights, counts that do not add up, steps out of order."""
    sizes = {weight.name: weight.size for weight in pruner.weights}
    steps = [event.step for event in events]
    fits = steps == sorted(steps) and all(0 <= each <= step for each in steps)
    for event in events:
        fits = fits and event.kept.keys() == sizes.keys() and event.nonzero == sum(event.kept.values())
        fits = fits and all(0 <= kept <= sizes[name] for name, kept in event.kept.items()) and event.grown >= 0
    if not fits:
        raise ValueError(f"`events` of the state cannot be those of a training of {step:,} steps with these weights")
    if not events and pruner.plan() and pruner.plan()[0].step == 0:
        raise ValueError("`events` of the state is empty, but this pruner prunes before the first step")


def _check_masks(pruner: Host, masks: Mapping[str, Tensor], events: Sequence[Event], starts_dense: bool) -> None:
    """Refuse masks that keep other numbers of weights than the last event has left."""
    weights, views = pruner.weights, [weight.view for weight in pruner.weights]
    if any(view.key is not None for view in views):
        _check_shards(pruner, masks, events)
        return
    kept = count_marks([weight.take(masks[weight.name]) for weight in weights], weights)
    if (events or starts_dense) and not OWN_COUNTS & pruner.needs().keys():
        for weight, number in zip(weights, kept, strict=True):
            if number != (recorded := events[-1].kept.get(weight.name) if events else weight.size):
                raise ValueError(
                    f"the mask of {weight.name} in the state keeps {number} weights, but `events` says {recorded}"
                )
    if len(events) < len(pruner.plan()) and not GROWTH & pruner.needs().keys():
        due = pruner.plan()[len(events)].nonzero
        least = min(due or 0, events[-1].nonzero) if events else due or 0  # units may be pruned to less than is due
        if sum(kept) < least:
            raise ValueError(f"the masks of the state keep {sum(kept)} weights, but the next pruning leaves {due}")


def _check_shards(pruner: Host, masks: Mapping[str, Tensor], events: Sequence[Event]) -> None:
    """Refuse the shards of another rank, on every rank: the masks of all ranks must add up to what was kept."""
    weights, views = pruner.weights, [weight.view for weight in pruner.weights]
    shards = [weight.take(masks[weight.name]) for weight in weights]
    fitting = all(shard.shape == weight.mask.shape for shard, weight in zip(shards, weights, strict=True))
    if not on_any_rank(not fitting, views):
        kept = count_marks(shards, weights)
        if not events or kept == [events[-1].kept.get(weight.name) for weight in weights]:
            return
    raise ValueError(
        "the masks of the state do not fit the shards of these ranks. Was it saved by one rank alone, with "
        "torch.save()? Save and load sharded weights with torch.distributed.checkpoint, on any number of ranks"
    )


def _read_settings(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("`settings` of the state is not JSON") from None


def _check_tensors(path: str, saved: Any, here: Any) -> None:
    """Compare tensors in dicts of any depth: the same names, shapes and dtypes."""
    if isinstance(here, Mapping):
        if not isinstance(saved, Mapping):
            raise ValueError(f"{path} is a {type(saved).__name__}; it must be a dict")
        if missing := [name for name in here if name not in saved]:
            raise ValueError(f"{path} has no {', '.join(map(str, missing))}")
        if unknown := [name for name in saved if name not in here]:
            raise ValueError(f"{path} has {', '.join(map(str, unknown))}, which this pruner does not have")
        for name, value in here.items():
            _check_tensors(f"{path}[{name!r}]", saved[name], value)
        return
    if not isinstance(saved, Tensor):
        raise ValueError(f"{path} is a {type(saved).__name__}; it must be a tensor")
    if saved.is_meta or saved.layout != torch.strided:
        raise ValueError(f"{path} has no values, or is a sparse tensor; it must be an ordinary tensor")
    if saved.shape != here.shape:
        raise ValueError(f"{path} has shape {tuple(saved.shape)}, and {tuple(here.shape)} in this pruner")
    if saved.dtype != here.dtype:
        raise ValueError(f"{path} is of {saved.dtype}, and of {here.dtype} in this pruner")


def read_events(text: str) -> list[Event]:
    """Read the events of a state."""
    try:
        events = [Event(**record) for record in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        raise ValueError("`events` of the state is not a JSON list of pruning events") from None
    for event in events:
        whole = (event.step, event.nonzero, event.grown, *(event.kept.values() if isinstance(event.kept, dict) else ()))
        shares = (event.sparsity, 0.0 if event.reached is None else event.reached)
        numbers = all(type(number) is int for number in whole) and all(isinstance(each, int | float) for each in shares)
        if not numbers or not isinstance(event.kept, dict):
            raise ValueError(f"`events` of the state has an invalid event: {event}")
    return events


@torch.no_grad()
def load_tensors(pruner: Host, state: Mapping[str, Any]) -> None:
    """Copy masks, statistics and slots into the weights of a pruner, zero what is pruned, and restore the events."""
    pruner.events[:] = read_events(state["events"])
    pruner.units.load(state["units"])
    for weight in pruner.weights:
        weight.mask.copy_(weight.take(state["masks"][weight.name]))
        weight.zero()
        for key, statistic in weight.statistics.items():
            for slot, tensor in statistic.state.items():
                saved = state["statistics"][key][weight.name][slot]
                tensor.copy_(weight.take(saved) if slot in statistic.elements else saved)
    count_weights(pruner.weights)
    pruner.form.load(pruner.work, state["form"], state["step"], len(pruner.events))
    pruner.form.watch(pruner.model, pruner.work)
    pruner.statistics.load(state["step"])


def _copy(tensors: Any) -> Any:
    if isinstance(tensors, Tensor):
        return tensors.detach().clone()
    return {key: _copy(value) for key, value in tensors.items()}

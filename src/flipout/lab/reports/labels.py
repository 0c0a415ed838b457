"""Labels of runs in reports: the title of the network, and the method with the options that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..data.data_catalogue import data_title
from ..models.model_catalogue import model_title
from ..runs.settings import Settings
from ..sweeps.sweep_view import OPTIONS, method_options
from .records import EXECUTION_SETTINGS, Record

METHOD_NAMES = {
    "flipout": "FlipOut",
    "magnitude": "Global magnitude",
    "random": "Random",
    "snip": "SNIP",
    "hoyer-square": "Hoyer-Square",
    "magnitude-uncertainty": "M&U",
    "deep-r": "Deep-R",
    "lottery": "Lottery tickets",
    "dense": "Dense",
    "keep-zeros": "Keep zeros",
}
CRITERIA = {
    "flipout.lab.paper.printed_equations:printed_saliency": "saliency as printed",
    "flipout.lab.paper.printed_equations:signed_saliency": "saliency without the absolute value",
}
SCHEDULES = {"default": "our schedule", "paper": "the paper's schedule"}
METHOD_SETTINGS = {"method", "sparsity", "seed", *OPTIONS}


def network_key(settings: Settings) -> tuple[tuple[str, Any], ...]:
    """All settings except the method, its options and the seed. Runs with the same key can be compared."""
    ignored = METHOD_SETTINGS | EXECUTION_SETTINGS
    shared = {key: value for key, value in settings.described().items() if key not in ignored}
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in shared.items())


def network_title(settings: Settings) -> str:
    """The network, its data and its training in one line."""
    width = f", {settings.width:g} of its channels" if settings.width != 1 else ""
    held = ", on held-out training data" if settings.validate_ else ""
    name = f"{model_title(settings.model)} on {data_title(settings.data)}"
    return f"{name}{width}, {counted(settings.epochs, 'epoch')}{held}"


def by_network(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Groups of runs that can be compared, by title. Equal titles are extended by the settings that differ."""
    groups: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for run in records:
        groups.setdefault(network_key(run.settings), []).append(run)
    titled: dict[str, list[Record]] = {}
    for network, group in groups.items():
        title = network_title(group[0].settings)
        alike = [other for other, runs in groups.items() if network_title(runs[0].settings) == title]
        if len(alike) > 1:
            differing = (key for key, value in network if any(dict(other)[key] != value for other in alike))
            title += "".join(f", {key.replace('_', ' ')} {dict(network)[key]}" for key in differing)
        titled[title] = group
    return titled


def dense_references(all_runs: Iterable[Record], runs: Sequence[Record]) -> list[Record]:
    """The dense runs of the same network as `runs`, without those that are already in `runs`."""
    network = network_key(runs[0].settings)
    dense = (run for run in all_runs if run.settings.method == "dense" and run not in runs)
    return [run for run in dense if network_key(run.settings) == network]


def label_runs(runs: Sequence[Record]) -> dict[str, str]:
    """A label for each run, by run name: the method and its options. The schedule is named only if schedules differ."""
    options = {run.name: _options(run.settings) for run in runs}
    schedules = {given["schedule"] for given in options.values() if "schedule" in given}
    return {run.name: _label(run.settings, options[run.name], len(schedules) > 1) for run in runs}


def _options(settings: Settings) -> dict[str, Any]:
    given = method_options(settings)
    if settings.schedule is not None:
        given["schedule"] = settings.schedule
    return given


def _label(settings: Settings, options: Mapping[str, Any], schedules_differ: bool) -> str:
    words = [METHOD_NAMES.get(settings.method, settings.method)]
    if settings.method == "hoyer-square" and settings.sparsity is not None:
        words.append("exact count")
    for name, value in options.items():
        if name == "schedule":
            if schedules_differ:
                words.append(SCHEDULES.get(value, f"{value} schedule"))
        elif name == "noise":
            words.append("no noise" if value == 0 else f"noise {value:g}")
        elif name == "relative_to":
            words.append(f"noise relative to the {value}")
        elif name == "criterion":
            words.append(CRITERIA.get(value, value))
        elif not (settings.method == "hoyer-square" and settings.sparsity is None and name == "lambda"):
            words.append(f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(words)


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 epoch, 2 epochs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(sparsity: float) -> str:
    """A sparsity in percent, with two decimals, or more if the density would be off by more than 5 %: 99.999 %."""
    digits = 2
    while sparsity < 1 and abs(round(100 * sparsity, digits) / 100 - sparsity) > (1 - sparsity) / 20:
        digits += 1
    return f"{100 * sparsity:.{digits}f}".rstrip("0").rstrip(".") + " %"

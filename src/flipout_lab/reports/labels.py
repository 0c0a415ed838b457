"""Labels of runs in reports: the title of the network, and the method with the options that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..data.data_catalogue import data_title
from ..models.model_catalogue import model_title
from ..runs.method_options import SECOND_CHANCES, find_method_or_none, method_title, shown
from ..runs.settings import Settings
from .records import EXECUTION_SETTINGS, Record, grouped

CRITERIA = {
    "flipout_lab.paper:printed_saliency": "saliency as printed",
    "flipout_lab.paper:signed_saliency": "saliency without the absolute value",
}
ONE_SHOT = {"obs": "Optimal Brain Surgeon", "wanda": "Wanda", "magnitude": "magnitude", "fisher": "Fisher"}
"""The methods of one-shot pruning."""
SCHEDULES = {"default": "our schedule", "paper": "the paper's schedule"}
PART_TITLES = {
    "results": "Accuracy against sparsity",
    "ablation": "Ablation of the noise",
    "schedules": "Pruning schedules",
    "our schedule": "All methods under our schedule",
    "table2": "The scale of the noise",
    "table3": "The power of the magnitude",
    "corrections": "The equations as printed in the paper",
    "aim": "The aim test: over-shoots and under-shoots",
    "others": "Other methods",
    "second chances": "Second chances: pruned weights that come back",
    "equal time": "Accuracy at equal time",
    "channels": "Whole channels, beside dense networks of the same size",
    "one shot": "One-shot beside gradual pruning",
    "choice": "Choices made on held-out data",
    "smoke test": "Smoke test: it says nothing about the methods",
    "runs": "Runs outside a grid",
}
HELD_OUT = ", on held-out training data"
METHOD_SETTINGS = {"method", "sparsity", "seed"}


def network_key(settings: Settings) -> tuple[tuple[str, Any], ...]:
    """All settings except the method, its options and the seed. Runs with the same key can be compared."""
    ignored = METHOD_SETTINGS | EXECUTION_SETTINGS
    shared = {key: value for key, value in settings.base().items() if key not in ignored}
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in shared.items())


def network_title(settings: Settings) -> str:
    """The network, its data and its training in one line."""
    held = HELD_OUT if settings.validate_ else ""
    return f"{network_name(settings)}, {counted(settings.epochs, 'epoch')}{held}"


def network_name(settings: Settings) -> str:
    """The network and its data."""
    width = f", {settings.width:g} of its channels" if settings.width != 1 else ""
    return f"{model_title(settings.model)} on {data_title(settings.data)}{width}"


def by_network(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Groups of runs that can be compared, by title. Equal titles are extended by the settings that differ."""
    groups = grouped(records, lambda run: network_key(run.settings))
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
    dense = (run for run in all_runs if not run.is_pruned and run not in runs)
    return [run for run in dense if network_key(run.settings) == network]


def label_runs(runs: Sequence[Record]) -> dict[str, str]:
    """A label for each run, by run name: the method and its options. The schedule is named only if schedules differ."""
    scan = scanned_option(runs)
    options = {run.name: _options(run.settings, scan) for run in runs}
    for method in {run.settings.method for run in runs if find_method_or_none(run.settings.method) is None}:
        _drop_equal([options[run.name] for run in runs if run.settings.method == method])
    schedules = {given["schedule"] for given in options.values() if "schedule" in given}
    return {run.name: _label(run.settings, options[run.name], len(schedules) > 1) for run in runs}


def scanned_option(runs: Sequence[Record]) -> str | None:
    """The option with more than four values in these runs, as in Tables 2 and 3 of the paper; None if there is none."""
    settings = [run.settings for run in runs if run.is_pruned]
    candidates = dict.fromkeys(["noise", "p", "lambda", *(key for each in settings for key in each.given_options)])
    for option in candidates:
        values = {_number(each.option(option)) for each in settings}
        if len(values) > 4 and None not in values:
            return option
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _options(settings: Settings, scan: str | None) -> dict[str, Any]:
    """The options that differ from their default, the scanned option, and the schedule."""
    given = settings.given_options
    for option in (scan, "schedule"):
        if option is not None and (value := settings.option(option)) is not None:
            given.setdefault(option, value)
    return given


def _drop_equal(options: Sequence[dict[str, Any]]) -> None:
    """Remove options that have the same value in all runs of a method that cannot be imported.

    The defaults of such a method are not known.
    """
    for key in list(options[0]):
        if all(key in given and given[key] == options[0][key] for given in options):
            for given in options:
                del given[key]


WORDS: Mapping[str, Callable[[Any], str]] = {
    "noise": lambda scale: f"noise {scale:g}" if scale else "no noise",
    "relative_to": lambda value: f"noise relative to the {value}",
    SECOND_CHANCES: lambda value: "second chances" if value else "permanent",
    f"{SECOND_CHANCES}_balance": lambda value: "balanced" if value else "not balanced",
    "granularity": lambda value: {"channel": "channels", "kernel": "kernels"}.get(value, value),
    "dead_first": lambda value: "dead first" if value else "dead last",
    "recalibrate": lambda value: "" if value else "batch norms as they were",
    "criterion": lambda value: CRITERIA.get(value, value),
}
"""How options are worded; others by their name and value."""


def _label(settings: Settings, options: Mapping[str, Any], schedules_differ: bool) -> str:
    one_shot = settings.option("one_shot")
    words = [method_title(settings.method) if one_shot is None else f"One shot: {ONE_SHOT[one_shot]}"]
    record = find_method_or_none(settings.method)
    if record is not None and not record.needs_sparsity and settings.sparsity is not None:
        words.append("exact count")
    for name, value in options.items():
        if name == "one_shot":
            continue
        if name in WORDS:
            words.append(WORDS[name](value))
        elif name == "schedule":
            words += [SCHEDULES.get(value, f"{value} schedule")] if schedules_differ else []
        # Where the sparsity is an outcome, lambda varies it. A p of none is that of the user's criterion.
        elif (settings.sparsity is not None or name != "lambda") and (name, value) != ("p", None):
            words.append(f"{name.replace('_', ' ')} {shown(value)}")
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

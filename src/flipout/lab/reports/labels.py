"""What runs are called: the network they train, and the method with whatever sets it apart from its fellows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..runs.method_lookup import find_method_or_none, method_title
from ..runs.method_options import shown
from ..runs.settings import Settings
from .records import INDIFFERENT, Record

MODEL_NAMES = {
    "mlp": "MLP",
    "lenet-300-100": "LeNet-300-100",
    "lenet-5": "LeNet-5",
    "conv-6": "Conv-6",
    "resnet18": "ResNet18",
    "vgg19": "VGG19",
    "densenet121": "DenseNet121",
}
DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "imagenette": "Imagenette"}
CRITERIA = {
    "flipout.criteria:printed_saliency": "saliency as printed",
    "flipout.criteria:signed_saliency": "saliency without the absolute value",
}
SCHEDULES = {"default": "our schedule", "paper": "the paper's schedule"}
_TOLD_APART = {"method", "sparsity", "seed"}


def network_of(settings: Settings) -> tuple[tuple[str, Any], ...]:
    """Everything but the method, its options and the seed: runs that agree in this may be compared."""
    told = {key: value for key, value in settings.base().items() if key not in _TOLD_APART | INDIFFERENT}
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in told.items())


def network_title(settings: Settings) -> str:
    """A network, its data and its training in a line."""
    data = DATA_NAMES.get(settings.data, settings.data)
    width = f", {settings.width:g} of its channels" if settings.width != 1 else ""
    held = ", on held-out training data" if settings.validate_ else ""
    model = MODEL_NAMES.get(settings.model, settings.model)
    return f"{model} on {data}{width}, {counted(settings.epochs, 'epoch')}{held}"


def by_network(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs that may be compared, by a title; where titles are the same, they say what differs."""
    groups: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for run in runs:
        groups.setdefault(network_of(run.settings), []).append(run)
    titled: dict[str, list[Record]] = {}
    for network, group in groups.items():
        title = network_title(group[0].settings)
        alike = [other for other, of in groups.items() if network_title(of[0].settings) == title]
        if len(alike) > 1:
            differing = (key for key, value in network if any(dict(other)[key] != value for other in alike))
            title += "".join(f", {key.replace('_', ' ')} {dict(network)[key]}" for key in differing)
        titled[title] = group
    return titled


def references(everything: Iterable[Record], runs: Sequence[Record]) -> list[Record]:
    """The dense runs of the network of these runs that are not among them."""
    network = network_of(runs[0].settings)
    dense = (run for run in everything if run.settings.method == "dense" and run not in runs)
    return [run for run in dense if network_of(run.settings) == network]


def labels(runs: Sequence[Record]) -> dict[str, str]:
    """A label for each run, by its name: the method, and those of its options that are not the same everywhere."""
    scan = scanned(runs)
    options = {run.name: _options(run.settings, scan) for run in runs}
    for method in {run.settings.method for run in runs if find_method_or_none(run.settings.method) is None}:
        _drop_equal([options[run.name] for run in runs if run.settings.method == method])
    schedules = {given["schedule"] for given in options.values() if "schedule" in given}
    return {run.name: _label(run.settings, options[run.name], len(schedules) > 1) for run in runs}


def scanned(runs: Sequence[Record]) -> str | None:
    """The option that takes many values in these runs, if there is one: what a table of the paper scans."""
    settings = [run.settings for run in runs if run.settings.method != "dense"]
    candidates = dict.fromkeys(["noise", "p", "lambda", *(key for one in settings for key in one.given_options)])
    for option in candidates:
        values = {_number(one.option(option)) for one in settings}
        if len(values) > 4 and None not in values:
            return option
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _options(settings: Settings, scan: str | None) -> dict[str, Any]:
    """The options that are not at their default, that of a scan, and the schedule."""
    given = settings.given_options
    for option in (scan, "schedule"):
        if option is not None and (value := settings.option(option)) is not None:
            given.setdefault(option, value)
    return given


def _drop_equal(options: Sequence[dict[str, Any]]) -> None:
    """Leave out options with one value in all runs of a method that cannot be imported: its defaults are not known."""
    for key in list(options[0]):
        if all(key in one and one[key] == options[0][key] for one in options):
            for one in options:
                del one[key]


def _label(settings: Settings, options: Mapping[str, Any], schedules_differ: bool) -> str:
    said = [method_title(settings.method)]
    record = find_method_or_none(settings.method)
    if record is not None and not record.needs_sparsity and settings.sparsity is not None:
        said.append("exact count")
    for name, value in options.items():
        if name == "schedule":
            if schedules_differ:
                said.append(SCHEDULES.get(value, f"{value} schedule"))
        elif name == "noise":
            said.append(f"noise {value:g}" if value else "no noise")
        elif name == "relative_to":
            said.append(f"noise relative to the {value}")
        elif name == "criterion":
            said.append(CRITERIA.get(value, value))
        elif settings.sparsity is not None or name != "lambda":  # where the sparsity is an outcome, lambda varies it
            said.append(f"{name.replace('_', ' ')} {shown(value)}")
    return ", ".join(said)


def counted(number: int, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(sparsity: float) -> str:
    """93.75 %, 99.61 %, 99.9 %, 99.999 %: two digits, or as many as give the density to a twentieth."""
    digits = 2
    while sparsity < 1 and abs(round(100 * sparsity, digits) / 100 - sparsity) > (1 - sparsity) / 20:
        digits += 1
    return f"{100 * sparsity:.{digits}f}".rstrip("0").rstrip(".") + " %"

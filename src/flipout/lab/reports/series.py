"""What the figures show, as numbers; drawn twice, for the page and for print."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flipout import METHODS

from ..runs.method_lookup import method_colour, method_title
from .labels import labels, percent
from .records import Record
from .seed_statistics import by_option, cells, one_per_seed

DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


@dataclass(frozen=True)
class Style:
    colour: str
    dash: str
    symbol: str


@dataclass(frozen=True)
class Curve:
    """Points with error bars; `error` is None where there is one seed only."""

    label: str
    style: Style
    x: tuple[float, ...]
    y: tuple[float, ...]
    error: tuple[float | None, ...]
    seeds: tuple[int, ...]
    moments: tuple[float, ...] = ()  # of prunings, on the x axis


def styles(runs: Sequence[Record]) -> dict[str, Style]:
    """A colour for each method, a dash for each of its variants."""
    named, found, variants = labels(runs), dict[str, Style](), dict[str, int]()
    for run in runs:
        label, method = named[run.name], run.settings.method
        if label not in found:
            number = variants.get(method, 0)
            variants[method] = number + 1
            found[label] = Style(method_colour(method), DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)])
    return found


def accuracy_curves(runs: Sequence[Record]) -> list[Curve]:
    """Accuracy against density, for every method."""
    look = styles(runs)
    curves = []
    for label, of in cells(runs).items():
        there = [(1 - sparsity, cell) for sparsity, cell in of.items() if cell.values]
        curves.append(
            Curve(
                label,
                look[label],
                tuple(density for density, _ in there),
                tuple(cell.mean for _, cell in there),
                tuple(cell.spread for _, cell in there),
                tuple(cell.seeds for _, cell in there),
            )
        )
    return curves


def scan_curves(runs: Sequence[Record], option: str) -> list[Curve]:
    """Accuracy against the value of an option, for every method and sparsity."""
    scans: dict[tuple[str, float], list[Record]] = {}
    for run in runs:
        if run.settings.sparsity and run.settings.method != "dense":
            scans.setdefault((method_title(run.settings.method), run.settings.sparsity), []).append(run)
    curves, colours = [], [record.colour for record in METHODS.values()]
    for number, ((method, sparsity), of) in enumerate(scans.items()):
        found = by_option(of, option)
        points = [(value, found[value, s]) for value, s in sorted(found) if found[value, s].values]
        curves.append(
            Curve(
                f"{method}, {percent(sparsity)}",
                Style(colours[number % len(colours)], "solid", SYMBOLS[number % len(SYMBOLS)]),
                tuple(value for value, _ in points),
                tuple(cell.mean for _, cell in points),
                tuple(cell.spread for _, cell in points),
                tuple(cell.seeds for _, cell in points),
            )
        )
    return curves


def learning_curves(runs: Sequence[Record], sparsity: float) -> list[Curve]:
    """Accuracy against epochs at one sparsity, the mean over seeds, with the moments of pruning."""
    look, named = styles(runs), labels(runs)
    grouped: dict[str, list[Record]] = {}
    for run in runs:
        if run.metrics and run.result is not None and run.settings.sparsity == sparsity:
            grouped.setdefault(named[run.name], []).append(run)
    curves = []
    for label, group in ((label, one_per_seed(of)) for label, of in grouped.items()):
        epochs = min(len(run.metrics) for run in group)
        values = [[100 * _accuracy(run, epoch) for run in group] for epoch in range(epochs)]
        curves.append(
            Curve(
                label,
                look[label],
                tuple(range(1, epochs + 1)),
                tuple(statistics.fmean(of) for of in values),
                tuple(statistics.stdev(of) if len(of) > 1 else None for of in values),
                tuple(len(of) for of in values),
                pruning_epochs(group[0]),
            )
        )
    return curves


def _accuracy(run: Record, epoch: int) -> float:
    line = run.metrics[epoch]
    test = line["test_accuracy"]
    return float(test if test is not None else line["validation_accuracy"])


def pruning_epochs(run: Record) -> tuple[float, ...]:
    """When a run was pruned, in epochs."""
    if run.result is None or not run.metrics:
        return ()
    steps_per_epoch = run.metrics[-1]["step"] / run.metrics[-1]["epoch"]
    return tuple(pruning["step"] / steps_per_epoch for pruning in run.result["prunings"])


@dataclass(frozen=True)
class Layers:
    """The share of its weights that each layer keeps, in percent: a row for each method."""

    labels: tuple[str, ...]
    layers: tuple[str, ...]
    kept: tuple[tuple[float, ...], ...]


def layer_shares(runs: Sequence[Record], sparsity: float) -> Layers:
    """The mean over seeds of what each layer has left."""
    named = labels(runs)
    grouped: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        if run.result is not None and "layers" in run.result and run.settings.sparsity == sparsity:
            shares = {
                name: 100 * layer["kept"] / max(1, layer["weights"]) for name, layer in run.result["layers"].items()
            }
            grouped.setdefault(named[run.name], []).append(shares)
    names = tuple(next(iter(grouped.values()))[0]) if grouped else ()
    rows = tuple(tuple(statistics.fmean(one[name] for one in of) for name in names) for of in grouped.values())
    return Layers(tuple(grouped), names, rows)


@dataclass(frozen=True)
class Flips:
    """How many weights, kept and pruned, flipped how often."""

    often: tuple[str, ...]
    kept: tuple[int, ...]
    pruned: tuple[int, ...]


def flip_histogram(run: Record) -> Flips | None:
    """Over all layers of a run; None for a method that does not count flips."""
    if run.result is None or not run.result.get("flips"):
        return None
    layers = run.result["flips"].values()
    bins = max(len(counts) for layer in layers for counts in layer.values())

    def total(kind: str) -> tuple[int, ...]:
        return tuple(sum(layer[kind][b] for layer in layers if b < len(layer[kind])) for b in range(bins))

    often = ("0", *(f"{2**b - 1} to {2 ** (b + 1) - 2}" for b in range(1, bins)))
    return Flips(often, total("kept"), total("pruned"))


def pruned_when(run: Record) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """For each layer the epochs of the prunings and of the end, and the share it had left then, in percent."""
    if run.result is None or "prunings" not in run.result:
        return {}
    moments = (0.0, *pruning_epochs(run), float(len(run.metrics)))
    found = {}
    for name, layer in run.result["layers"].items():
        shares = [100 * pruning["kept"][name] / max(1, layer["weights"]) for pruning in run.result["prunings"]]
        found[name] = (moments, (100.0, *shares, 100 * layer["kept"] / max(1, layer["weights"])))
    return found

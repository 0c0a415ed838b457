"""The numbers behind the figures. They are drawn twice: with plotly for the page, with matplotlib for print."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flipout import METHODS

from ..runs.method_options import method_colour, method_title
from .labels import label_runs, percent
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
    """Points with error bars. `error` is None for a point with a single seed."""

    label: str
    style: Style
    x: tuple[float, ...]
    y: tuple[float, ...]
    error: tuple[float | None, ...]
    seeds: tuple[int, ...]
    prunings: tuple[float, ...] = ()  # where on the x axis the network was pruned


def styles(runs: Sequence[Record]) -> dict[str, Style]:
    """The style of each label: a colour for each method, a dash for each variant of it."""
    labels, chosen, variants = label_runs(runs), dict[str, Style](), dict[str, int]()
    for run in runs:
        label, method = labels[run.name], run.settings.method
        if label not in chosen:
            number = variants.get(method, 0)
            variants[method] = number + 1
            chosen[label] = Style(method_colour(method), DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)])
    return chosen


def accuracy_curves(runs: Sequence[Record]) -> list[Curve]:
    """Accuracy against density, for every method."""
    style = styles(runs)
    curves = []
    for label, row in cells(runs).items():
        points = [(1 - sparsity, cell) for sparsity, cell in row.items() if cell.values]
        curves.append(
            Curve(
                label,
                style[label],
                tuple(density for density, _ in points),
                tuple(cell.mean for _, cell in points),
                tuple(cell.spread for _, cell in points),
                tuple(cell.seeds for _, cell in points),
            )
        )
    return curves


def scan_curves(runs: Sequence[Record], option: str) -> list[Curve]:
    """Accuracy against the value of an option, one curve for each method and sparsity."""
    scans: dict[tuple[str, float], list[Record]] = {}
    for run in runs:
        if run.settings.sparsity and run.settings.method != "dense":
            scans.setdefault((method_title(run.settings.method), run.settings.sparsity), []).append(run)
    curves, colours = [], [record.colour for record in METHODS.values()]
    for number, ((method, sparsity), group) in enumerate(scans.items()):
        scan = by_option(group, option)
        points = [(value, scan[value, s]) for value, s in sorted(scan) if scan[value, s].values]
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
    """Accuracy against epochs at one sparsity: the mean over seeds, with the epochs at which the network was pruned."""
    return _epoch_curves(runs, sparsity, lambda run, epoch: 100 * _accuracy(run, epoch))


def seconds_curves(runs: Sequence[Record], sparsity: float) -> list[Curve]:
    """The seconds of each epoch at one sparsity and of the dense network: they fall as the network is shrunk."""
    timed = [run for run in runs if run.metrics and all("epoch_seconds" in line for line in run.metrics)]
    return _epoch_curves(timed, sparsity, lambda run, epoch: float(run.metrics[epoch]["epoch_seconds"]), dense=True)


def _epoch_curves(
    runs: Sequence[Record], sparsity: float, value: Callable[[Record, int], float], *, dense: bool = False
) -> list[Curve]:
    style, labels = styles(runs), label_runs(runs)
    grouped: dict[str, list[Record]] = {}
    for run in runs:
        shown = run.settings.sparsity == sparsity or (dense and run.settings.method == "dense")
        if run.metrics and run.result is not None and shown:
            grouped.setdefault(labels[run.name], []).append(run)
    curves = []
    for label, group in ((label, one_per_seed(records)) for label, records in grouped.items()):
        epochs = min(len(run.metrics) for run in group)
        values = [[value(run, epoch) for run in group] for epoch in range(epochs)]
        curves.append(
            Curve(
                label,
                style[label],
                tuple(range(1, epochs + 1)),
                tuple(statistics.fmean(epoch) for epoch in values),
                tuple(statistics.stdev(epoch) if len(epoch) > 1 else None for epoch in values),
                tuple(len(epoch) for epoch in values),
                pruning_epochs(group[0]),
            )
        )
    return curves


def _accuracy(run: Record, epoch: int) -> float:
    line = run.metrics[epoch]
    test = line["test_accuracy"]
    return float(test if test is not None else line["validation_accuracy"])


def pruning_epochs(run: Record) -> tuple[float, ...]:
    """The epochs at which a run was pruned, as fractions."""
    if run.result is None or not run.metrics:
        return ()
    steps_per_epoch = run.metrics[-1]["step"] / run.metrics[-1]["epoch"]
    return tuple(pruning["step"] / steps_per_epoch for pruning in run.result["prunings"])


@dataclass(frozen=True)
class LayerShares:
    """The share of weights that each layer keeps, in percent, with one row per method."""

    labels: tuple[str, ...]
    layers: tuple[str, ...]
    kept: tuple[tuple[float, ...], ...]


def layer_shares(runs: Sequence[Record], sparsity: float) -> LayerShares:
    """The share of weights that each layer keeps at one sparsity: the mean over seeds."""
    labels = label_runs(runs)
    grouped: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        if run.result is not None and "layers" in run.result and run.settings.sparsity == sparsity:
            shares = {
                name: 100 * layer["kept"] / max(1, layer["weights"]) for name, layer in run.result["layers"].items()
            }
            grouped.setdefault(labels[run.name], []).append(shares)
    names = tuple(next(iter(grouped.values()))[0]) if grouped else ()
    rows = tuple(tuple(statistics.fmean(seed[name] for seed in seeds) for name in names) for seeds in grouped.values())
    return LayerShares(tuple(grouped), names, rows)


@dataclass(frozen=True)
class FlipHistogram:
    """How many weights flipped how often. `counts` are the ranges of the histogram: "0", "1 to 2", "3 to 6", ..."""

    counts: tuple[str, ...]
    kept: tuple[int, ...]
    pruned: tuple[int, ...]


def flip_histogram(run: Record) -> FlipHistogram | None:
    """The flips of all layers of a run; None for a method that does not count flips."""
    if run.result is None or not run.result.get("flips"):
        return None
    layers = run.result["flips"].values()
    bins = max(len(histogram) for layer in layers for histogram in layer.values())

    def total(kind: str) -> tuple[int, ...]:
        return tuple(sum(layer[kind][b] for layer in layers if b < len(layer[kind])) for b in range(bins))

    counts = ("0", *(f"{2**b - 1} to {2 ** (b + 1) - 2}" for b in range(1, bins)))
    return FlipHistogram(counts, total("kept"), total("pruned"))


def pruning_history(run: Record) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """For each layer the epochs of the start, the prunings and the end, and the share of weights left after each."""
    if run.result is None or "prunings" not in run.result:
        return {}
    epochs = (0.0, *pruning_epochs(run), float(len(run.metrics)))
    history = {}
    for name, layer in run.result["layers"].items():
        shares = [100 * pruning["kept"][name] / max(1, layer["weights"]) for pruning in run.result["prunings"]]
        history[name] = (epochs, (100.0, *shares, 100 * layer["kept"] / max(1, layer["weights"])))
    return history

"""The figures of a report as data. They are drawn twice: with plotly for the page, with matplotlib for print."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flipout import METHODS

from ..runs.method_options import method_colour, method_title
from ..runs.run_folder import accuracy_in
from .labels import label_runs, percent
from .records import Record, grouped
from .seed_statistics import Cell, by_option, cells, dense_cell, one_per_seed

DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


@dataclass(frozen=True)
class Style:
    colour: str | None = None  # None: the next one of the palette
    dash: str = "solid"
    symbol: str = "circle"


@dataclass(frozen=True)
class Curve:
    """Points with error bars. `error` is None for a point with a single seed."""

    label: str
    style: Style
    x: tuple[Any, ...]  # numbers, or the names of bars
    y: tuple[float, ...]
    error: tuple[float | None, ...] = ()
    seeds: tuple[int, ...] = ()
    prunings: tuple[float, ...] = ()  # where on the x axis the network was pruned


@dataclass(frozen=True)
class Lines:
    """Curves with their axes."""

    curves: tuple[Curve, ...]
    x: str
    y: str
    unit: str = "%"
    reference: float | None = None  # a horizontal line: the dense network
    over_density: bool = False  # the x axis is the density, logarithmic, with higher sparsity to the right
    from_zero: bool = False
    log: bool = False  # the y axis is logarithmic
    kind: Literal["lines", "steps", "bars"] = "lines"


@dataclass(frozen=True)
class LayerShares:
    """The share of weights that each layer keeps, in percent, with one row per method."""

    labels: tuple[str, ...]
    layers: tuple[str, ...]
    kept: tuple[tuple[float, ...], ...]


Chart = Lines | LayerShares


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


def curve_of(label: str, style: Style, points: Sequence[tuple[float, Cell]], prunings: tuple[float, ...] = ()) -> Curve:
    """A curve through cells: their means, spreads and seeds. Empty cells have no point."""
    points = [(x, cell) for x, cell in points if cell.values]
    columns = ((x, cell.mean, cell.spread, cell.seeds) for x, cell in points)
    x, y, error, seeds = zip(*columns, strict=True) if points else ((), (), (), ())
    return Curve(label, style, x, y, error, seeds, prunings)


def accuracy_chart(runs: Sequence[Record]) -> Lines:
    style, dense = styles(runs), dense_cell(runs)
    curves = tuple(
        curve_of(label, style[label], [(1 - sparsity, cell) for sparsity, cell in row.items()])
        for label, row in cells(runs).items()
    )
    reference = dense.mean if dense is not None and dense.values else None
    return Lines(curves, "weights pruned (log scale)", "accuracy, last epoch (%)", "%", reference, over_density=True)


def training_chart(runs: Sequence[Record]) -> Lines:
    """The seconds of a whole training against sparsity, with the dense network as reference."""
    style, labels, curves = styles(runs), label_runs(runs), []
    pruned = [run for run in runs if run.is_pruned and run.settings.sparsity is not None]
    for label, row in grouped(pruned, lambda run: labels[run.name]).items():
        by_sparsity = grouped(row, lambda run: run.settings.sparsity)
        points = [(1 - sparsity, _seconds(by_sparsity[sparsity])) for sparsity in sorted(by_sparsity)]
        curves.append(curve_of(label, style[label], points))
    dense = _seconds([run for run in runs if not run.is_pruned])
    reference = dense.mean if dense.values else None
    axes = "weights pruned (log scale)", "seconds of training"
    return Lines(tuple(curves), *axes, "s", reference, over_density=True, from_zero=True)


def _seconds(runs: Sequence[Record]) -> Cell:
    return Cell(tuple(float(run.result["seconds"]) for run in one_per_seed(runs) if run.result is not None))


def scan_chart(runs: Sequence[Record], option: str, axis: str) -> Lines:
    """Accuracy against the value of an option, one curve for each method and sparsity."""
    pruned = [run for run in runs if run.settings.sparsity and run.is_pruned]
    scans = grouped(pruned, lambda run: (method_title(run.settings.method), run.settings.sparsity or 0.0))
    curves, colours = [], [record.colour for record in METHODS.values()]
    for number, ((method, sparsity), group) in enumerate(scans.items()):
        style = Style(colours[number % len(colours)], "solid", SYMBOLS[number % len(SYMBOLS)])
        points = [(value, cell) for (value, _), cell in sorted(by_option(group, option).items(), key=lambda e: e[0])]
        curves.append(curve_of(f"{method}, {percent(sparsity)}", style, points))
    return Lines(tuple(curves), axis, "accuracy (%)")


def learning_chart(runs: Sequence[Record], sparsity: float) -> Lines:
    """Accuracy against epochs at one sparsity: the mean over seeds, with the epochs at which the network was pruned."""
    curves = _epoch_curves(runs, sparsity, lambda run, epoch: 100 * accuracy_in(run.metrics[epoch]))
    return Lines(curves, "epoch (ticks: prunings)", "accuracy (%)")


def seconds_chart(runs: Sequence[Record], sparsity: float) -> Lines:
    """The seconds of each epoch at one sparsity and of the dense network: they fall as the network is shrunk."""
    curves = _epoch_curves(runs, sparsity, lambda run, epoch: float(run.metrics[epoch]["epoch_seconds"]), dense=True)
    return Lines(
        tuple(replace(curve, prunings=()) for curve in curves), "epoch", "seconds of the epoch", "s", from_zero=True
    )


def _epoch_curves(
    runs: Sequence[Record], sparsity: float, value: Callable[[Record, int], float], *, dense: bool = False
) -> tuple[Curve, ...]:
    style, labels = styles(runs), label_runs(runs)
    wanted = [run for run in runs if run.settings.sparsity == sparsity or (dense and not run.is_pruned)]
    shown = [run for run in wanted if run.metrics and run.result is not None]
    curves = []
    for label, records in grouped(shown, lambda run: labels[run.name]).items():
        group = one_per_seed(records)
        epochs = min(len(run.metrics) for run in group)
        points = [(e + 1.0, Cell(tuple(value(run, e) for run in group))) for e in range(epochs)]
        curves.append(curve_of(label, style[label], points, pruning_epochs(group[0])))
    return tuple(curves)


def pruning_epochs(run: Record) -> tuple[float, ...]:
    """The epochs at which a run was pruned, as fractions."""
    if run.result is None or not run.metrics:
        return ()
    steps_per_epoch = run.metrics[-1]["step"] / run.metrics[-1]["epoch"]
    return tuple(pruning["step"] / steps_per_epoch for pruning in run.result["prunings"])


def layer_shares(runs: Sequence[Record], sparsity: float) -> LayerShares:
    """The share of weights that each layer keeps at one sparsity: the mean over seeds."""
    labels, kept = label_runs(runs), dict[str, list[float]]()
    shown = [run for run in runs if run.result and "layers" in run.result and run.settings.sparsity == sparsity]
    names = tuple(shown[0].result["layers"]) if shown and shown[0].result else ()
    for label, group in grouped(shown, lambda run: labels[run.name]).items():
        seeds = [run.result["layers"] for run in group if run.result]
        kept[label] = [statistics.fmean(_share(seed[name]["kept"], seed[name]) for seed in seeds) for name in names]
    return LayerShares(tuple(kept), names, tuple(map(tuple, kept.values())))


def _share(kept: int, layer: Mapping[str, int]) -> float:
    return 100 * kept / max(1, layer["weights"])


def flip_histogram(run: Record) -> Lines | None:
    """How many weights of a run flipped 0, 1 to 2, 3 to 6, ... times; None for a method that does not count flips."""
    if run.result is None or not run.result.get("flips"):
        return None
    layers = run.result["flips"].values()
    bins = max(len(histogram) for layer in layers for histogram in layer.values())
    names = ("0", *(f"{2**b - 1} to {2 ** (b + 1) - 2}" for b in range(1, bins)))
    curves = []
    for kind, colour in (("pruned", "#c9c9c9"), ("kept", "#0072b2")):
        counts = tuple(sum(layer[kind][b] for layer in layers if b < len(layer[kind])) for b in range(bins))
        curves.append(Curve(kind, Style(colour), names, counts))
    return Lines(tuple(curves), "sign flips before pruning", "weights", "weights", log=True, kind="bars")


def pruning_history(run: Record) -> Lines | None:
    """The share of weights that each layer of a run has left after each pruning; None if the run does not say."""
    if run.result is None or "prunings" not in run.result:
        return None
    epochs, curves = (0.0, *pruning_epochs(run), float(len(run.metrics))), []
    for name, layer in run.result["layers"].items():
        shares = [_share(pruning["kept"][name], layer) for pruning in run.result["prunings"]]
        curves.append(Curve(name, Style(), epochs, (100.0, *shares, _share(layer["kept"], layer))))
    return Lines(tuple(curves), "epoch", "weights left (%)", log=True, kind="steps")

"""The figures for print, as PNG and PDF, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from .chart_data import Curve, FlipHistogram, LayerShares
from .labels import percent
from .seed_statistics import Cell

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^"}


class Drawing:
    """A figure that is written to `PATH.png` and `PATH.pdf`, or to `PATH` alone if that ends in .png or .pdf."""

    def __init__(self, path: Path, title: str, size: tuple[float, float] = (7.0, 4.2)) -> None:
        mpl.use("Agg")
        import matplotlib.pyplot as plt

        self.path, self.plt = path, plt
        self.figure, self.axes = plt.subplots(figsize=size, layout="constrained")
        self.axes.set_title(title.replace("$", r"\$"), fontsize=10)
        self.axes.spines[["top", "right"]].set_visible(False)

    def __enter__(self) -> Any:
        return self.axes

    def __exit__(self, *_: object) -> None:
        if self.axes.get_legend_handles_labels()[1]:
            self.axes.legend(frameon=False, fontsize=8)
        for suffix in [""] if self.path.suffix in (".png", ".pdf") else [".png", ".pdf"]:
            path = self.path.with_name(self.path.name + suffix)
            # No date in the file, so that the same results give the same bytes.
            self.figure.savefig(path, dpi=130, metadata={"CreationDate": None} if path.suffix == ".pdf" else {})
        self.plt.close(self.figure)


def _draw(axes: Any, curve: Curve, **more: Any) -> None:
    style = {"color": curve.style.colour, "linestyle": DASHES[curve.style.dash], "label": curve.label}
    errors = [error or 0 for error in curve.error]
    marker = MARKERS[curve.style.symbol]
    axes.errorbar(curve.x, curve.y, errors, marker=marker, markersize=4, capsize=2, **style, **more)


def draw_accuracy(path: Path, title: str, curves: Sequence[Curve], reference: Cell | None) -> None:
    """Accuracy against density on a logarithmic axis, with higher sparsity to the right."""
    densities = sorted({x for curve in curves for x in curve.x})
    with Drawing(path, title) as axes:
        if reference is not None and reference.values:
            axes.axhline(reference.mean, color="#333333", linestyle=":", linewidth=1, label="Dense")
        for curve in curves:
            if curve.x:
                _draw(axes, curve)
        axes.set(xscale="log", xlabel="weights pruned", ylabel="accuracy, last epoch (%)")
        axes.set_xticks(densities, [percent(1 - density) for density in densities])
        axes.minorticks_off()
        axes.invert_xaxis()


def draw_scan(path: Path, title: str, curves: Sequence[Curve], option: str) -> None:
    """Accuracy against the values of an option."""
    with Drawing(path, title) as axes:
        for curve in curves:
            _draw(axes, curve)
        axes.set(xlabel=option, ylabel="accuracy (%)")


def draw_seconds(path: Path, title: str, curves: Sequence[Curve]) -> None:
    """The seconds of each epoch."""
    with Drawing(path, title) as axes:
        for curve in curves:
            _draw(axes, curve)
        axes.set(xlabel="epoch", ylabel="seconds of the epoch")
        axes.set_ylim(bottom=0)


def draw_learning(path: Path, title: str, curves: Sequence[Curve]) -> None:
    """Learning curves. Ticks at the bottom mark the prunings of each method."""
    with Drawing(path, title) as axes:
        for curve in curves:
            _draw(axes, curve, linewidth=1.2)
        low = axes.get_ylim()[0]
        step = (axes.get_ylim()[1] - low) / 40
        for row, curve in enumerate(curves):
            heights = [low - (row + 0.5) * step] * len(curve.prunings)
            axes.plot(curve.prunings, heights, "|", color=curve.style.colour, markersize=5)
        axes.set(xlabel="epoch (ticks: prunings)", ylabel="accuracy (%)")


def draw_layers(path: Path, title: str, layers: LayerShares) -> None:
    """The share of weights that each layer keeps: a heat map on a logarithmic scale. Dead layers are red."""
    from matplotlib.colors import LogNorm

    size = (max(5.0, 2.5 + 0.5 * len(layers.layers)), 1.6 + 0.35 * len(layers.labels))
    with Drawing(path, title, size) as axes:
        colours = mpl.colormaps["Blues"].with_extremes(bad="#f3d9d9")
        shown = [[value if value > 0 else float("nan") for value in row] for row in layers.kept]
        image = axes.imshow(shown, aspect="auto", cmap=colours, norm=LogNorm(0.01, 100))
        axes.set_xticks(range(len(layers.layers)), layers.layers, rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(layers.labels)), layers.labels, fontsize=8)
        axes.figure.colorbar(image, label="kept (%)")


def draw_flips(path: Path, title: str, flips: FlipHistogram) -> None:
    """How often kept weights and pruned weights flipped."""
    with Drawing(path, title) as axes:
        places = range(len(flips.counts))
        axes.bar([place - 0.2 for place in places], flips.pruned, 0.4, label="pruned", color="#c9c9c9")
        axes.bar([place + 0.2 for place in places], flips.kept, 0.4, label="kept", color="#0072b2")
        axes.set_xticks(places, flips.counts, rotation=45, ha="right", fontsize=8)
        axes.set(yscale="log", xlabel="sign flips before pruning", ylabel="weights")


def draw_pruning_history(path: Path, title: str, layers: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """The share of weights that each layer has left after each pruning."""
    with Drawing(path, title) as axes:
        for name, (epochs, shares) in layers.items():
            axes.step(epochs, shares, where="post", label=name if len(layers) <= 12 else None, linewidth=1.2)
        axes.set(yscale="log", xlabel="epoch", ylabel="weights left (%)")

"""The figures for print, as PNG and PDF, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from ..files import full_disk_explained
from .charts import Chart, LayerShares, Lines
from .labels import percent

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
            with full_disk_explained(path):
                self.figure.savefig(path, dpi=130, metadata={"CreationDate": None} if path.suffix == ".pdf" else {})
        self.plt.close(self.figure)


def draw_figure(path: Path, title: str, chart: Chart) -> None:
    if isinstance(chart, Lines):
        with Drawing(path, title) as axes:
            _draw_lines(axes, chart)
    else:
        size = (max(5.0, 2.5 + 0.5 * len(chart.layers)), 1.6 + 0.35 * len(chart.labels))
        with Drawing(path, title, size) as axes:
            _draw_layers(axes, chart)


def _draw_lines(axes: Any, chart: Lines) -> None:
    if chart.reference is not None:
        axes.axhline(chart.reference, color="#333333", linestyle=":", linewidth=1, label="Dense")
    for number, curve in enumerate(chart.curves):
        style: dict[str, Any] = {"color": curve.style.colour, "label": curve.label}
        if chart.kind == "bars":
            axes.bar([place + 0.4 * number - 0.2 for place in range(len(curve.x))], curve.y, 0.4, **style)
            axes.set_xticks(range(len(curve.x)), curve.x, rotation=45, ha="right", fontsize=8)
        elif chart.kind == "steps":
            style["label"] = curve.label if len(chart.curves) <= 12 else None
            axes.step(curve.x, curve.y, where="post", linewidth=1.2, **style)
        elif curve.x:
            style |= {"linestyle": DASHES[curve.style.dash], "marker": MARKERS[curve.style.symbol]}
            errors = [error or 0 for error in curve.error]
            axes.errorbar(curve.x, curve.y, errors, markersize=4, capsize=2, linewidth=1.4, **style)
    low, high = axes.get_ylim()
    for row, curve in enumerate(chart.curves):
        heights = [low - (row + 0.5) * (high - low) / 40] * len(curve.prunings)
        axes.plot(curve.prunings, heights, "|", color=curve.style.colour, markersize=5)
    axes.set(xlabel=chart.x, ylabel=chart.y, yscale="log" if chart.log else "linear")
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.over_density:
        densities = sorted({x for curve in chart.curves for x in curve.x})
        axes.set_xscale("log")
        axes.set_xticks(densities, [percent(1 - density) for density in densities])
        axes.minorticks_off()
        axes.invert_xaxis()


def _draw_layers(axes: Any, chart: LayerShares) -> None:
    """A heat map on a logarithmic scale. Dead layers are red."""
    from matplotlib.colors import LogNorm

    colours = mpl.colormaps["Blues"].with_extremes(bad="#f3d9d9")
    shown = [[value if value > 0 else float("nan") for value in row] for row in chart.kept]
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=LogNorm(0.01, 100))
    axes.set_xticks(range(len(chart.layers)), chart.layers, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(chart.labels)), chart.labels, fontsize=8)
    axes.figure.colorbar(image, label="kept (%)")

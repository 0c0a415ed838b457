"""The interactive figures of the page, drawn with plotly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from .chart_data import Curve, FlipHistogram, LayerShares
from .labels import percent
from .seed_statistics import Cell

FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222"}
GRID = "#e6e6e6"


def _figure(traces: Sequence[Any], x: str, y: str, height: int = 420, **layout: Any) -> go.Figure:
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="plotly_white",
        font=FONT,
        height=height,
        margin={"l": 60, "r": 16, "t": 20, "b": 60},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "font": {"size": 12}},
        hovermode="closest",
        **layout,
    )
    figure.update_xaxes(title=x, gridcolor=GRID, automargin=True)
    figure.update_yaxes(title=y, gridcolor=GRID, automargin=True)
    return figure


def _trace(curve: Curve, name: str, **more: Any) -> Any:
    spreads = ["one seed" if e is None else f"± {e:.2f}" for e in curve.error]
    return go.Scatter(
        x=list(curve.x),
        y=list(curve.y),
        error_y={"type": "data", "array": [e or 0 for e in curve.error], "thickness": 1.2, "width": 4},
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"color": curve.style.colour, "dash": curve.style.dash, "width": 2},
        marker={"symbol": curve.style.symbol, "size": 7},
        customdata=list(zip(spreads, curve.seeds, strict=True)),
        **more,
    )


def accuracy_chart(curves: Sequence[Curve], reference: Cell | None) -> go.Figure:
    """Accuracy against density on a logarithmic axis, with higher sparsity to the right."""
    hover = "%{y:.2f} % %{customdata[0]}, %{customdata[1]} seeds<extra>%{fullData.name}</extra>"
    traces = [_trace(curve, curve.label, hovertemplate=hover) for curve in curves]
    densities = sorted({x for curve in curves for x in curve.x})
    if reference is not None and reference.values and densities:
        line = {"color": "#333", "dash": "dot", "width": 1.5}
        ends = [densities[0], densities[-1]]
        traces.append(go.Scatter(x=ends, y=[reference.mean] * 2, name="Dense", mode="lines", line=line))
    figure = _figure(traces, "weights pruned (log scale)", "accuracy, last epoch (%)")
    figure.update_xaxes(type="log", autorange="reversed", minor={"ticks": ""})
    figure.update_xaxes(tickvals=densities, ticktext=[percent(1 - density) for density in densities])
    return figure


def scan_chart(curves: Sequence[Curve], option: str) -> go.Figure:
    """Accuracy against the values of an option."""
    hover = "%{x}: %{y:.2f} % %{customdata[0]}<extra>%{fullData.name}</extra>"
    return _figure([_trace(curve, curve.label, hovertemplate=hover) for curve in curves], option, "accuracy (%)")


def learning_chart(by_sparsity: dict[float, list[Curve]]) -> go.Figure:
    """Learning curves, one sparsity at a time. Ticks at the bottom mark the prunings of each method."""
    traces, sparsity_of_trace = [], []
    lowest = min(y for curves in by_sparsity.values() for curve in curves for y in curve.y)
    highest = max(y for curves in by_sparsity.values() for curve in curves for y in curve.y)
    step = (highest - lowest + 1) / 40
    for sparsity, curves in by_sparsity.items():
        for row, curve in enumerate(curves):
            hover = "epoch %{x}: %{y:.2f} % %{customdata[0]}<extra>%{fullData.name}</extra>"
            traces.append(_trace(curve, curve.label, hovertemplate=hover))
            ticks = {"symbol": "line-ns-open", "size": 7, "color": curve.style.colour}
            traces.append(
                go.Scatter(
                    x=list(curve.prunings),
                    y=[lowest - (row + 1) * step] * len(curve.prunings),
                    mode="markers",
                    marker=ticks,
                    legendgroup=curve.label,
                    showlegend=False,
                    hovertemplate="pruned at epoch %{x:.2f}<extra>%{fullData.name}</extra>",
                    name=curve.label,
                )
            )
            sparsity_of_trace += [sparsity, sparsity]
    figure = _figure(traces, "epoch (ticks: prunings)", "accuracy (%)", height=480)
    return _add_menu(figure, [(percent(s), [each == s for each in sparsity_of_trace]) for s in by_sparsity])


def seconds_chart(by_sparsity: dict[float, list[Curve]]) -> go.Figure:
    """The seconds of each epoch, one sparsity at a time."""
    traces, sparsity_of_trace = [], []
    for sparsity, curves in by_sparsity.items():
        for curve in curves:
            hover = "epoch %{x}: %{y:.1f} s %{customdata[0]}<extra>%{fullData.name}</extra>"
            traces.append(_trace(curve, curve.label, hovertemplate=hover))
            sparsity_of_trace.append(sparsity)
    figure = _figure(traces, "epoch", "seconds of the epoch")
    figure.update_yaxes(rangemode="tozero")
    return _add_menu(figure, [(percent(s), [each == s for each in sparsity_of_trace]) for s in by_sparsity])


def layers_chart(by_sparsity: dict[float, LayerShares]) -> go.Figure:
    """The share of weights that each layer keeps: a heat map on a logarithmic scale."""
    traces = []
    for layers in by_sparsity.values():
        logs = [[math.log10(value) if value > 0 else None for value in row] for row in layers.kept]
        texts = [[f"{value:.3g}" if value > 0 else "dead" for value in row] for row in layers.kept]
        traces.append(
            go.Heatmap(
                z=logs,
                x=list(layers.layers),
                y=list(layers.labels),
                text=texts,
                texttemplate="%{text}" if len(layers.layers) <= 12 else None,
                hovertemplate="%{y}, %{x}: %{text} % kept<extra></extra>",
                colorscale="Blues",
                zmin=-2,
                zmax=2,
                colorbar={
                    "title": "kept",
                    "tickvals": [-2, -1, 0, 1, 2],
                    "ticktext": ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
                },
            )
        )
    rows = max(len(layers.labels) for layers in by_sparsity.values())
    figure = _figure(traces, "layer", "", height=180 + 30 * rows, plot_bgcolor="#f3d9d9")
    figure.update_yaxes(autorange="reversed")
    names = [percent(sparsity) for sparsity in by_sparsity]
    return _add_menu(figure, [(name, [i == j for j in range(len(names))]) for i, name in enumerate(names)])


def flips_chart(by_run: dict[str, FlipHistogram]) -> go.Figure:
    """How often kept weights and pruned weights flipped."""
    traces = []
    for flips in by_run.values():
        for name, counts, colour in (("pruned", flips.pruned, "#c9c9c9"), ("kept", flips.kept, "#0072b2")):
            traces.append(go.Bar(x=list(flips.counts), y=list(counts), name=name, marker_color=colour))
    figure = _figure(traces, "sign flips before pruning", "weights", barmode="group")
    figure.update_yaxes(type="log", dtick=1)
    names = list(by_run)
    return _add_menu(figure, [(name, [i == j // 2 for j in range(2 * len(names))]) for i, name in enumerate(names)])


def pruning_history_chart(by_run: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]) -> go.Figure:
    """The share of weights that each layer has left after each pruning."""
    traces, run_of_trace = [], []
    for name, layers in by_run.items():
        for layer, (epochs, shares) in layers.items():
            line = {"shape": "hv", "width": 1.5}
            traces.append(go.Scatter(x=list(epochs), y=list(shares), name=layer, mode="lines", line=line))
            run_of_trace.append(name)
    figure = _figure(traces, "epoch", "weights left (%)", height=480)
    figure.update_yaxes(type="log", dtick=1)
    return _add_menu(figure, [(name, [each == name for each in run_of_trace]) for name in by_run])


def _add_menu(figure: go.Figure, options: list[tuple[str, list[bool]]]) -> go.Figure:
    """Add a menu in which each option shows some of the traces. The last option is selected at first."""
    for trace, visible in zip(figure.data, options[-1][1], strict=True):
        trace.visible = visible
    buttons = [{"label": name, "method": "update", "args": [{"visible": shown}]} for name, shown in options]
    menu = {
        "buttons": buttons,
        "active": len(options) - 1,
        "x": 1,
        "xanchor": "right",
        "y": 1.02,
        "yanchor": "bottom",
        "direction": "down",
    }
    figure.update_layout(updatemenus=[menu] if len(options) > 1 else [])
    figure.update_layout(margin_t=70)
    return figure

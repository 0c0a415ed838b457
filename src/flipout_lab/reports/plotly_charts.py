"""The interactive figures of the page, drawn with plotly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from .charts import Chart, Curve, LayerShares, Lines
from .labels import percent

FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222"}
GRID = "#e6e6e6"


def draw_chart(choices: Mapping[str, Chart]) -> go.Figure:
    """Draw one of several charts of the same kind, with a menu to choose it by its name. The last is shown at first."""
    figure, owners, chart = go.Figure(), list[str](), list(choices.values())[-1]
    for name, each in choices.items():
        traces = _traces(each)
        figure.add_traces(traces)
        owners += [name] * len(traces)
    figure.update_layout(
        template="plotly_white",
        font=FONT,
        height=420,
        margin={"l": 60, "r": 16, "t": 20, "b": 60},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "font": {"size": 12}},
        hovermode="closest",
    )
    figure.update_xaxes(gridcolor=GRID, automargin=True)
    figure.update_yaxes(gridcolor=GRID, automargin=True)
    _set_axes(figure, chart)
    if len(choices) > 1:
        shown = {name: [owner == name for owner in owners] for name in choices}
        for trace, visible in zip(figure.data, list(shown.values())[-1], strict=True):
            trace.visible = visible
        buttons = [{"label": name, "method": "update", "args": [{"visible": which}]} for name, which in shown.items()]
        place = {"x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom", "direction": "down"}
        figure.update_layout(updatemenus=[{"buttons": buttons, "active": len(buttons) - 1, **place}], margin_t=70)
        # Below the figure, so that the menu covers no entry on a narrow screen.
        figure.update_layout(legend={"yref": "container", "y": 0}, height=figure.layout.height + 40)
    return figure


def _set_axes(figure: go.Figure, chart: Chart) -> None:
    if isinstance(chart, LayerShares):
        figure.update_layout(xaxis_title="layer", height=180 + 30 * len(chart.labels), plot_bgcolor="#f3d9d9")
        figure.update_yaxes(autorange="reversed")
        return
    figure.update_layout(xaxis_title=chart.x, yaxis_title=chart.y, barmode="group")
    if chart.over_density:
        densities = sorted({x for curve in chart.curves for x in curve.x})
        figure.update_xaxes(type="log", autorange="reversed", minor={"ticks": ""})
        figure.update_xaxes(tickvals=densities, ticktext=[percent(1 - density) for density in densities])
    if chart.from_zero:
        figure.update_yaxes(rangemode="tozero")
    if chart.log:
        figure.update_yaxes(type="log", dtick=1)


def _traces(chart: Chart) -> list[Any]:
    """A trace for each curve, the ticks below it that mark its prunings, and the reference; or a heat map."""
    if isinstance(chart, LayerShares):
        return [_heat_map(chart)]
    traces = [_trace(curve, chart) for curve in chart.curves]
    heights = [y for curve in chart.curves for y in curve.y]
    if chart.reference is not None and heights:
        places = [x for curve in chart.curves for x in curve.x]
        line = {"color": "#333", "dash": "dot", "width": 1.5}
        ends = [min(places), max(places)]
        traces.append(go.Scatter(x=ends, y=[chart.reference] * 2, name="Dense", mode="lines", line=line))
    for row, curve in enumerate(chart.curves):
        if curve.prunings:
            height = min(heights) - (row + 1) * (max(heights) - min(heights) + 1) / 40
            traces.append(
                go.Scatter(
                    x=curve.prunings,
                    y=[height] * len(curve.prunings),
                    mode="markers",
                    marker={"symbol": "line-ns-open", "size": 7, "color": curve.style.colour},
                    legendgroup=curve.label,
                    showlegend=False,
                    hovertemplate="pruned at epoch %{x:.2f}<extra>%{fullData.name}</extra>",
                    name=curve.label,
                )
            )
    return traces


def _trace(curve: Curve, chart: Lines) -> Any:
    if chart.kind == "bars":
        return go.Bar(x=curve.x, y=curve.y, name=curve.label, marker_color=curve.style.colour)
    if chart.kind == "steps":
        return go.Scatter(x=curve.x, y=curve.y, name=curve.label, mode="lines", line={"shape": "hv", "width": 1.5})
    spreads = [
        "one seed" if e is None else f"± {e:.2f}, {n} seeds" for e, n in zip(curve.error, curve.seeds, strict=True)
    ]
    where = "" if chart.over_density else f"{chart.x.partition(' (')[0]} %{{x}}: "
    return go.Scatter(
        x=curve.x,
        y=curve.y,
        error_y={"type": "data", "array": [e or 0 for e in curve.error], "thickness": 1.2, "width": 4},
        name=curve.label,
        legendgroup=curve.label,
        mode="lines+markers",
        line={"color": curve.style.colour, "dash": curve.style.dash, "width": 2},
        marker={"symbol": curve.style.symbol, "size": 7},
        customdata=spreads,
        hovertemplate=f"{where}%{{y:.2f}} {chart.unit} %{{customdata}}<extra>%{{fullData.name}}</extra>",
    )


def _heat_map(chart: LayerShares) -> Any:
    """The share of weights that each layer keeps, on a logarithmic scale."""
    ticks = {"tickvals": [-2, -1, 0, 1, 2], "ticktext": ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"]}
    return go.Heatmap(
        z=[[math.log10(value) if value > 0 else None for value in row] for row in chart.kept],
        x=chart.layers,
        y=chart.labels,
        text=[[f"{value:.3g}" if value > 0 else "dead" for value in row] for row in chart.kept],
        texttemplate="%{text}" if len(chart.layers) <= 12 else None,
        hovertemplate="%{y}, %{x}: %{text} % kept<extra></extra>",
        colorscale="Blues",
        zmin=-2,
        zmax=2,
        colorbar={"title": "kept", **ticks},
    )

"""The two pictures of the README, from stored results: `python -m benchmarks.readme_figures`.

They are read at half the width of a page, so they are small and have few lines.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.zeros_figures import points_of
from flipout_lab.reports.charts import accuracy_chart
from flipout_lab.reports.labels import dense_references, percent
from flipout_lab.reports.lead import lead_figure, measured_networks
from flipout_lab.reports.matplotlib_figures import Drawing
from flipout_lab.reports.records import collect, pooled

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "docs" / "results"
SPEEDS = ROOT / "benchmarks" / "zeros.json"
SIZE = (4.4, 3.4)
ORANGE, BLUE, GREEN = "#d55e00", "#0072b2", "#009e73"
METHODS = {
    "FlipOut": ("FlipOut", BLUE),
    "Global magnitude": ("global magnitude, the usual choice", ORANGE),
}
"""What is shown of the results: for each label there, the name in the picture and the colour."""
FIGURES = {
    "inference, batch 1": ("inference_dense_over_sparse", "-batch1", BLUE),
    "a training step, batch 128 (at 99.9 % shrunk, too)": ("train_step_dense_over_sparse", "", GREEN),
}


def draw_accuracy(path: Path) -> None:
    """Accuracy against sparsity on the convolutional network with the most runs."""
    runs = pooled(collect(each) for each in sorted(RESULTS.glob("*.json")) if each.stem != "cited-methods").runs
    lead = lead_figure(runs)
    assert lead is not None, f"{RESULTS} has no results of a convolutional network"
    group = [run for run in measured_networks(runs)[lead.network] if run.settings.option("schedule") != "paper"]
    chart = accuracy_chart([*group, *dense_references(runs, group)])
    shown = [curve for curve in chart.curves if curve.label in METHODS]
    assert len(shown) == len(METHODS), f"{lead.network} has not all of {', '.join(METHODS)}"
    with Drawing(path, lead.network, SIZE) as axes:
        if chart.reference is not None:
            axes.axhline(chart.reference, color="#333333", linestyle=":", linewidth=1, label="dense")
        for curve in shown:
            label, colour = METHODS[curve.label]
            errors = [error or 0 for error in curve.error]
            axes.errorbar(curve.x, curve.y, errors, fmt="o-", capsize=2, color=colour, label=label)
        axes.set(xlabel="weights pruned", ylabel="test accuracy (%)", xscale="log", ylim=(0, 85))
        densities = sorted({x for curve in shown for x in curve.x})
        axes.set_xticks(densities, [percent(1 - density) for density in densities])
        axes.minorticks_off()
        axes.invert_xaxis()


def draw_speed(path: Path) -> None:
    """Times as fast as dense against sparsity: inference and a training step, with the ranking over the network."""
    results = json.loads(SPEEDS.read_text())
    with Drawing(path, "ResNet18 on a CPU: dense time / sparse time", SIZE) as axes:
        for label, (figure, suffix, colour) in FIGURES.items():
            points = sorted(points_of(results[figure], "resnet18", suffix))
            axes.plot([1 - s for s, _ in points], [ratio for _, ratio in points], "o-", color=colour, label=label)
        axes.axhline(1, color=ORANGE, linewidth=1.4, label="masks on dense layers, the usual choice")
        axes.set(xlabel="weights pruned", ylabel="times as fast", xscale="log", yscale="log", ylim=(0.8, 40))
        shown = [0.2, 0.1, 0.05, 0.01, 0.001]
        axes.set_xticks(shown, [f"{100 * (1 - density):g} %" for density in shown])
        axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.invert_xaxis()


if __name__ == "__main__":
    draw_accuracy(PICTURES / "readme-accuracy.png")
    draw_speed(PICTURES / "readme-speed.png")

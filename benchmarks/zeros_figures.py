"""The tables and the picture of `benchmarks/zeros.json`: `python -m benchmarks.zeros --only figures`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from flipout_lab.reports.matplotlib_figures import Drawing

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "zeros.png"
COLUMNS = {
    "inference_dense_over_sparse": "dense / sparse",
    "inference_onnxruntime_over_sparse": "onnxruntime (dense) / sparse",
    "train_step_dense_over_sparse": "step, dense / sparse",
    "train_time_dense_over_sparse": "whole training, dense / sparse",
}
"""The figures, and what heads their columns."""
CURVES = (
    ("inference_dense_over_sparse", "-batch1", "inference, batch 1, one thread", "#0072b2"),
    ("inference_dense_over_sparse", "-batch32", "inference, batch 32, one thread", "#56b4e9"),
    ("train_step_dense_over_sparse", "", "a training step, batch 128, two threads", "#009e73"),
)
STYLES = {"-layer": ("o-", ", the same sparsity in every layer"), "": ("o--", ", weights ranked over the network")}
"""For what is added to the name of a network: how its line looks, and what is added to its label."""

TITLES = {"resnet18": "ResNet18 on CIFAR-10", "vgg19": "VGG19 on CIFAR-10"}

Results = Mapping[str, Mapping[str, float]]


def tables(results: Results) -> str:
    """The figures as tables in Markdown: one of inference, one of training."""
    return "\n\n".join(_table(results, part) for part in ("inference", "train"))


def _table(results: Results, part: str) -> str:
    figures = {name: results.get(name, {}) for name in COLUMNS if name.startswith(part)}
    rows = [["network, sparsity", *(COLUMNS[name] for name in figures)], ["---", *["---:"] * len(figures)]]
    rows += [
        [key, *(f"{numbers[key]:.2f}" if key in numbers else "" for numbers in figures.values())]
        for key in dict.fromkeys(key for numbers in figures.values() for key in numbers)
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(path: Path, results: Results, network: str = "resnet18") -> None:
    """Draw how many times as fast a network is, over its sparsity."""
    with Drawing(path, f"{TITLES[network]}: dense time / time with sparse kernels, CPU, float32") as axes:
        axes.axhline(1, color="#333333", linestyle=":", linewidth=1, label="dense")
        for (figure, suffix, label, colour), (scope, (style, words)) in product(CURVES, STYLES.items()):
            points = sorted(points_of(results.get(figure, {}), network, scope + suffix))
            if points:
                densities, ratios = [1 - sparsity for sparsity, _ in points], [ratio for _, ratio in points]
                axes.plot(densities, ratios, style, color=colour, label=label + words)
        # The legend is above the lines.
        axes.set(xlabel="sparsity (%)", ylabel="times as fast", xscale="log", yscale="log", ylim=(0.9, 90))
        shown = [0.2, 0.1, 0.05, 0.01, 0.001]
        axes.set_xticks(shown, [f"{100 * (1 - density):g}" for density in shown])
        axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.invert_xaxis()


def points_of(numbers: Mapping[str, float], network: str, suffix: str) -> Iterator[tuple[float, float]]:
    """The sparsity and the number of each key such as `resnet18-0.9-batch1`, with one suffix."""
    for key, number in numbers.items():
        start, end = f"{network}-", suffix
        middle = key.removeprefix(start).removesuffix(end)
        if key == start + middle + end and middle.replace(".", "", 1).isdigit():
            yield float(middle), number

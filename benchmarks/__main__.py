"""`make bench`: every figure is a ratio of medians, taken in this one run with the repetitions interleaved.

The ratios go to benchmarks/results.json as `{figure: {network: number}}`, the times behind them to spreads.json.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

import flipout

from . import analysis, growth, loop, one_shot, step, training, units
from .timing import Times, median, ratio, spreads

HERE = Path(__file__).parent
REPETITIONS = {"lenet-300-100": 201, "resnet18": 21, "vgg19": 11, "densenet121": 15}
SMALL_REPETITIONS = 101
TRAINED = {"lenet-300-100": 301, "resnet18": 13}
STEP = {  # figure: which work over which
    "step_over_sgd": ("ours", "sgd"),
    "second_chances_over_step": ("second_chances", "ours"),
    "textbook_over_step": ("textbook", "ours"),
    "select_argsort_over_ours": ("argsort", "select"),
    "select_kthvalue_over_ours": ("kthvalue", "select"),
}
Figures = dict[str, dict[str, float]]


def main() -> None:
    warnings.simplefilter("ignore", flipout.UnfinishedWarning)
    console = Console()
    results: Figures = {name: {} for name in STEP}
    behind: dict[str, object] = {}
    for network, repetitions in REPETITIONS.items():
        with console.status(f"the step and a pruning of {network}"):
            times = step.measure(step.weights_of(network), repetitions)
        results |= {name: results[name] | {network: ratio(times, *pair)} for name, pair in STEP.items()}
        behind[f"step {network}"] = spreads(times)
    with console.status("many small layers"):
        times = step.measure_many_small_layers(SMALL_REPETITIONS)
    results["many_small_layers"] = {name: ratio(times, name, "sgd") for name in times if name != "sgd"}
    behind["many small layers"] = spreads(times)
    results["bytes_per_weight"] = step.bytes_per_weight()
    results |= {"train_over_plain": {}, "second_chances_train_over_plain": {}}
    for network, repetitions in TRAINED.items():
        with console.status(f"whole training steps of {network}"):
            times = training.measure(network, repetitions)
        results["train_over_plain"][network] = ratio(times, "flipout", "plain")
        results["second_chances_train_over_plain"][network] = ratio(times, "second_chances", "plain")
        behind[f"train {network}"] = spreads(times)
    with console.status("a million weights, ten and a hundred"):
        for name, times in growth.measure(7).items():
            results[f"growth_{name}"] = growth_of(times)
            behind[f"growth {name}"] = spreads(times)
    with console.status("larger units than a weight"):
        times, memory = units.measure(7)
    results["select_units_over_weights"] = {name: ratio(times, name, "weight") for name in times}
    results["select_peak_bytes_per_weight"] = memory
    behind["units"] = spreads(times)
    with console.status("one-shot pruning against the textbook's"):
        times, figures = one_shot.measure(one_shot.Perceptron(), 3)
    results["one_shot_over_textbook"] = {
        name: ratio(times, f"ours_{name}", f"textbook_{name}") for name in one_shot.PRUNE
    }
    results |= {f"one_shot_{name}_over_textbook": figure for name, figure in figures.items()}
    behind["one shot"] = spreads(times)
    with console.status("one-shot pruning of a decoder"):
        results["one_shot_decoder"] = one_shot.measure_decoder()
    with console.status("the channels of a network"):
        results |= {f"channels_{what}_seconds": seconds for what, seconds in analysis.measure().items()}
    with console.status("the lab's loop against a bare one"):
        times = loop.measure()
    results["loop_over_bare"] = {"lenet-300-100": ratio(times, "lab", "bare")}
    behind["loop"] = spreads(times)
    results = {name: {key: round(number, 3) for key, number in figure.items()} for name, figure in results.items()}
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (HERE / "spreads.json").write_text(json.dumps(behind, indent=2) + "\n")
    show(console, results)


def growth_of(times: Times) -> dict[str, float]:
    """Time per weight, relative to the smallest."""
    per_weight = {name: median(taken) / int(name.removesuffix("M")) for name, taken in times.items()}
    first = next(iter(per_weight.values()))
    return {name: value / first for name, value in per_weight.items()}


def show(console: Console, results: Figures) -> None:
    """A table for each set of columns, in the order of the file."""
    tables: dict[tuple[str, ...], Table] = {}
    for name, figure in results.items():
        columns = tuple(REPETITIONS) if set(figure) <= set(REPETITIONS) else tuple(figure)
        if columns not in tables:
            tables[columns] = Table("figure")
            for column in columns:
                tables[columns].add_column(column, justify="right")
        tables[columns].add_row(name, *(f"{figure[column]:.2f}" if column in figure else "" for column in columns))
    for table in tables.values():
        console.print(table)


if __name__ == "__main__":
    main()

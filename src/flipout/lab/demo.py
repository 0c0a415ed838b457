"""The demo: five methods at three sparsities on the embedded digits, a table and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from .run import train
from .settings import make_settings

METHODS = ("flipout", "magnitude", "snip", "random")
SPARSITIES = (0.9, 0.97, 0.99)
CASES = [("dense", 0.0), *((method, sparsity) for sparsity in SPARSITIES for method in METHODS)]
EPOCHS = 30
COLOURS = {"flipout": "#1f6f8b", "magnitude": "#c8553d", "snip": "#588157", "random": "#8d99ae"}

Results = Mapping[tuple[str, float], float]


def run_all(folder: Path, step: Callable[[str], None]) -> Results:
    """Thirteen short runs, each in a folder of its own; finished ones are not run again."""
    results = {}
    for method, sparsity in CASES:
        settings = make_settings(data="digits", model="mlp", method=method, sparsity=sparsity, epochs=EPOCHS)
        result = train(settings, folder / settings.folder_name())
        results[method, sparsity] = result["test_accuracy"]
        step(f"{method}, {sparsity:.0%} pruned: {result['test_accuracy']:.2%}")
    return results


def accuracy_table(results: Results) -> Table:
    """Accuracies, the best of each sparsity in bold."""
    table = Table("method", title=f"test accuracy, last of {EPOCHS} epochs (digits, mlp, seed 0)")
    for sparsity in SPARSITIES:
        table.add_column(f"{sparsity:.0%} pruned", justify="right")
    best = {sparsity: max(results[method, sparsity] for method in METHODS) for sparsity in SPARSITIES}
    for method in METHODS:
        cells = [results[method, sparsity] for sparsity in SPARSITIES]
        table.add_row(
            method,
            *(f"[bold]{a:.2%}[/]" if a == best[s] else f"{a:.2%}" for a, s in zip(cells, SPARSITIES, strict=True)),
        )
    table.add_row("dense (0 % pruned)", *[f"{results['dense', 0.0]:.2%}"] * len(SPARSITIES), style="dim")
    return table


def draw(results: Results, path: Path) -> None:
    """Accuracy against density, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.axhline(100 * results["dense", 0.0], color="#999999", linestyle=":", label="dense")
    for method in METHODS:
        accuracies = [100 * results[method, sparsity] for sparsity in SPARSITIES]
        axes.plot([1 - s for s in SPARSITIES], accuracies, "o-", color=COLOURS[method], label=method)
    axes.set(
        xscale="log",
        xticks=[1 - s for s in SPARSITIES],
        xticklabels=[f"{s:.0%}" for s in SPARSITIES],
        xlabel="weights pruned",
        ylabel="test accuracy, last epoch (%)",
        title=f"digits, mlp of 50,432 weights, {EPOCHS} epochs, one seed",
    )
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def demo(folder: Path, console: Console, *, quiet: bool = False) -> None:
    """Runs, shows and names everything."""
    columns = BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task("", total=len(CASES))
        results = run_all(folder, lambda text: progress.update(task, advance=1, description=text))
    picture = folder / "accuracy.png"
    draw(results, picture)
    console.print(accuracy_table(results))
    console.print(
        f"picture: {picture}\n\nNext:\n"
        f"  flipout show {folder}/digits-mlp-flipout-0.97-*\n"
        "  flipout train --data mnist --model lenet-300-100 --method flipout --sparsity 0.98 --epochs 10\n"
        "  flipout plan --model vgg19 --sparsity 0.999 --recipe paper\n"
        "  flipout methods",
        soft_wrap=True,
    )

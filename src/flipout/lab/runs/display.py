"""Runs and plans as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from flipout.layers import find_layers
from flipout.schedules import Pruning

from ..errors import LabError
from ..files import read_json
from .run_folder import CONFIG, METRICS, RESULT

EPOCHS_SHOWN = 12


def prunable_weights(model: nn.Module) -> int:
    """How many weights are pruned by default."""
    optimizer = torch.optim.SGD(model.parameters())
    return sum(layer.weight.numel() for layer in find_layers(model, optimizer, None, None))


def accuracy_of(result: Mapping[str, Any]) -> tuple[str, float]:
    """Which accuracy a run has, and the number."""
    kind = "test" if result["test_accuracy"] is not None else "validation"
    return f"{kind} accuracy", float(result[f"{kind}_accuracy"])


def result_table(result: Mapping[str, Any]) -> Table:
    """What a run came to."""
    kind, accuracy = accuracy_of(result)
    table = Table(show_header=False)
    for name, value in (
        ("run", f"{result['method']} on {Path(result['data']).name}, {result['model']}, seed {result['seed']}"),
        ("epochs", f"{result['epochs']}, in {result['seconds']:.1f} s"),
        ("weights kept", f"{result['nonzero']:,} of {result['prunable']:,}"),
        ("of them on a live path", f"{result['effective']:,}"),
        ("sparsity", f"{result['sparsity']:.4%}"),
        (f"{kind}, {result['accuracy_of']}", f"[bold]{accuracy:.2%}[/]"),
    ):
        table.add_row(name, value)
    return table


def plan_table(title: str, plan: Sequence[Pruning], steps_per_epoch: int) -> Table:
    """Every pruning of a plan, with its epoch."""
    table = Table(title=title)
    for column in ("pruning", "step", "epoch", "sparsity", "weights kept"):
        table.add_column(column, justify="right")
    for number, (step, sparsity, kept) in enumerate(plan, 1):
        table.add_row(str(number), f"{step:,}", f"{step / steps_per_epoch:.4g}", f"{sparsity:.4%}", f"{kept:,}")
    return table


def run_tables(folder: Path) -> Iterator[Table | Text]:
    """The settings that are not defaults, the layers, the epochs and the result of a run."""
    if not (folder / CONFIG).exists():
        raise LabError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    config = read_json(folder / CONFIG)
    settings = {name: value for name, value in config["settings"].items() if value is not None}
    yield Text(", ".join(f"{name} {_plain(value)}" for name, value in settings.items()), style="dim")
    yield Text(", ".join(f"{name} {value}" for name, value in config["versions"].items()), style="dim")
    metrics = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    yield _epochs(metrics)
    if not (folder / RESULT).exists():
        yield Text(f"not finished: {len(metrics)} epochs are done; run its command again to go on", style="yellow")
        return
    result = read_json(folder / RESULT)
    yield _layers(result)
    if result["dead_layers"]:
        yield Text(f"dead layers: {', '.join(result['dead_layers'])}", style="red")
    yield result_table(result)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _epochs(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Some of the epochs, evenly spread, and the last."""
    table = Table(title="epochs")
    for column in ("epoch", "loss", "accuracy", "sparsity", "learning rate", "flips", "seconds"):
        table.add_column(column, justify="right")
    every = max(1, -(-len(metrics) // EPOCHS_SHOWN))
    for line in [line for line in metrics if line["epoch"] % every == 0 or line is metrics[-1]]:
        table.add_row(
            str(line["epoch"]),
            f"{line['loss']:.4f}",
            f"{accuracy_of(line)[1]:.2%}",
            f"{line['sparsity']:.4%}",
            f"{line['learning_rate']:.3g}",
            "" if line["flips"] is None else f"{line['flips']:,}",
            f"{line['seconds']:.1f}",
        )
    return table


def _layers(result: Mapping[str, Any]) -> Table:
    table = Table("layer", title="layers")
    for column in ("weights", "kept", "sparsity"):
        table.add_column(column, justify="right")
    for name, layer in result["layers"].items():
        share = 1 - layer["kept"] / layer["weights"] if layer["weights"] else 0.0
        table.add_row(name, f"{layer['weights']:,}", f"{layer['kept']:,}", f"{share:.2%}")
    return table

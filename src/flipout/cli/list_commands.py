"""Commands that list what there is: `flipout methods`, `models`, `data`."""

from __future__ import annotations

from rich.table import Table

from .. import lab
from ..lab.data import DATA
from ..lab.models import MODELS
from ..lab.runs import display as shown
from ..lab.runs.pruning import ABOUT
from ..lab.runs.settings import COMMON, METHOD_OPTIONS, SCHEDULED
from .application import app, console


@app.command()
def methods() -> None:
    """List the methods, and the options each takes."""

    def flags(options: set[str]) -> str:
        return " ".join(sorted("--" + option.replace("_", "-") for option in options))

    table = Table("method", "prunes", "its own options")
    for name, about in ABOUT.items():
        own = flags(METHOD_OPTIONS[name] - SCHEDULED - COMMON)
        table.add_row(name, about, f"{own} [dim]and when[/]".strip() if METHOD_OPTIONS[name] >= SCHEDULED else own)
    console.print(table)
    console.print(f"when: {flags(SCHEDULED)}\nall that prune: --sparsity {flags(COMMON)}")


@app.command()
def models() -> None:
    """List the networks."""
    table = Table("model", "network", "usual data")
    table.add_column("weights", justify="right")
    for name, info in MODELS.items():
        model = lab.build(name, DATA[info.data].shape, DATA[info.data].classes)
        table.add_row(name, info.about, info.data, f"{shown.prunable_weights(model):,}")
    table.add_row("torchvision:NAME, timm:NAME", "where installed", "", "")
    table.add_row("module:function", "your own; called with shape, classes and width, as far as it takes them", "", "")
    console.print(table)


@app.command()
def data() -> None:
    """List the data sets."""
    table = Table("data", "images", "shape")
    table.add_column("to train on", justify="right")
    for name, info in DATA.items():
        table.add_row(name, info.about, " x ".join(map(str, info.shape)), f"{info.train:,}")
    table.add_row("FOLDER", "yours: train/CLASS/*.jpg and test/CLASS/*.jpg", "", "")
    table.add_row("module:function", "yours: returns training images, labels, test images, labels", "", "")
    console.print(table)

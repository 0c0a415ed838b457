"""Commands that list what is available: `flipout methods`, `models`, `data`."""

from __future__ import annotations

from flipout import METHODS

from .. import build
from ..data import DATA
from ..models import MODELS
from ..runs.method_options import options_of
from ..runs.run_views import prunable_weights
from ..runs.settings import flag
from ..tables import Table
from .application import app, console

SHARED = (
    ("schedule", "prunings", "start", "end"),
    ("scope", "floor", "granularity", "reduce", "dead_first"),
    ("noise", "relative_to"),
)
"""Options that several methods take, in groups that go together."""


@app.command()
def methods() -> None:
    """List the pruning methods, and the options that each of them takes."""
    rows = []
    for name, record in METHODS.items():
        own = [option for option in options_of(record).values() if option.own]
        rows.append([name, record.about, "\n".join(f"{flag(option.key)} {option.shown_default}" for option in own)])
    rows.append(["module:Class", "your own: a subclass of flipout.Pruner", "the options of its constructor"])
    console.print(Table("", ("method", "prunes", "only this method takes"), rows, texts=(0, 1, 2)).rich())
    for keys in SHARED:
        names = ", ".join(name for name, record in METHODS.items() if keys[0] in options_of(record))
        console.print(f"{' '.join(map(flag, keys))}: {names}", soft_wrap=True, markup=False)
    console.print("flipout train --method NAME --help explains the options of a method", soft_wrap=True)


@app.command()
def models() -> None:
    """List the networks."""
    rows = []
    for name, info in MODELS.items():
        model = build(name, DATA[info.data].shape, DATA[info.data].classes)
        rows.append([name, info.about, info.data, f"{prunable_weights(model):,}"])
    rows.append(["torchvision:NAME, timm:NAME", "where installed", "", ""])
    rows.append(["module:function", "your own; called with those of shape, classes and width that it takes", "", ""])
    console.print(Table("", ("model", "network", "usual data", "weights"), rows, texts=(0, 1, 2)).rich())


@app.command()
def data() -> None:
    """List the data sets."""
    rows = [[name, info.about, " x ".join(map(str, info.shape)), f"{info.train:,}"] for name, info in DATA.items()]
    rows.append(["FOLDER", "yours: train/CLASS/*.jpg and test/CLASS/*.jpg", "", ""])
    rows.append(["module:function", "yours: returns training images, labels, test images, labels", "", ""])
    console.print(Table("", ("data", "images", "shape", "training images"), rows, texts=(0, 1, 2)).rich())

"""Commands for single runs, and lists of what can be run: methods, networks and data sets."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from flipout import METHODS, UnfinishedWarning
from flipout.export import card as measure_card

from .. import Settings, build, load, load_run
from .. import train as train_run
from ..data import DATA
from ..data.batches import prepare
from ..data.data_loading import check_image_size
from ..errors import LabError
from ..models import MODELS
from ..runs import run_views
from ..runs.exporting import FORMATS, export_run, load_with_images
from ..runs.method_options import options_of
from ..runs.networks import evaluate
from ..runs.pruning import attach, make_optimizer, steps_per_epoch
from ..runs.run_folder import read_settings
from ..runs.run_views import prunable_weights, view_for
from ..runs.settings import flag
from ..runs.trackers import MLflow, TensorBoard, Tracker, WeightsAndBiases
from ..tables import Table
from .application import Folder, app, console, errors, settings_command


def _output(name: str, about: str, metavar: str = "") -> Any:
    return typer.Option(name, help=about, metavar=metavar, rich_help_panel="Output")


WHERE = "folder of the run (default: a folder below runs/, named by the settings)"


@settings_command(app)
def train(
    settings: Settings,
    out: Annotated[Path | None, _output("--out", WHERE, "FOLDER")] = None,
    tensorboard: Annotated[bool, _output("--tensorboard", "also write event files for TensorBoard")] = False,
    mlflow: Annotated[bool, _output("--mlflow", "also log to MLflow, to files of the run by default")] = False,
    wandb: Annotated[bool, _output("--wandb", "also log to Weights & Biases, offline by default")] = False,
    quiet: Annotated[bool, _output("--quiet", "print nothing but errors")] = False,
) -> None:
    """Train and prune a network. Run the command again to continue an interrupted run."""
    folder = out or Path("runs") / settings.folder_name()
    finished = (folder / "result.json").exists()
    asked: list[tuple[bool, type[Tracker]]] = [(tensorboard, TensorBoard), (mlflow, MLflow), (wandb, WeightsAndBiases)]
    with view_for(console, quiet) as view:
        result = train_run(settings, folder, view=view, trackers=[kind() for wanted, kind in asked if wanted])
    if not quiet:
        if finished:
            console.print(f"{folder} is already finished; nothing was run", soft_wrap=True, markup=False)
        console.print(run_views.result_table(result).rich())
        console.print(f"saved in {folder}", soft_wrap=True, markup=False)


@settings_command(app)
def plan(settings: Settings) -> None:
    """Show when a network will be pruned, and to how many weights, without training it."""
    if settings.record.needs.batches:
        raise LabError(f"{settings.method} does not prune in steps but before training; there is no plan to show")
    if settings.data in DATA:
        info = DATA[settings.data]
        images, shape, classes = info.train, info.shape, info.classes
        if settings.image_size is not None:
            check_image_size(settings.data)
            shape = (shape[0], settings.image_size, settings.image_size)
    else:
        loaded = load(settings.data, settings.image_size)
        images, shape, classes = len(loaded.train_labels), loaded.shape, loaded.classes
    steps = steps_per_epoch(settings, images)
    model = build(settings.model, shape, classes, settings.width)
    pruner = attach(settings, model, make_optimizer(settings, model), steps, lambda _: [])
    planned, prunable = pruner.plan(), pruner.prunable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedWarning)
        pruner.remove()
    if all(pruning.step == 0 for pruning in planned):
        raise LabError(f"{settings.method} does not prune in steps; there is no plan to show")
    title = f"{settings.model}, {prunable:,} weights, {settings.total_epochs} epochs of {steps} steps"
    console.print(run_views.plan_table(title, planned, steps).rich())


@app.command()
def show(run: Folder) -> None:
    """Show the settings, the epochs, the layers and the result of a run."""
    for part in run_views.run_tables(run):
        console.print(part)


@app.command(name="evaluate")
def evaluate_(run: Folder) -> None:
    """Measure the accuracy of a finished network again, on its test set."""
    settings = read_settings(run)
    model = load_run(run)
    loaded = load(settings.data, settings.image_size)
    _, held_out = prepare(loaded, next(model.parameters()).device, validate=settings.validate_)
    what = "validation images" if settings.validate_ else "test images"
    accuracy = evaluate(model, held_out)
    console.print(f"{run}: {accuracy:.4%} of {len(held_out):,} {what} of {settings.data}", soft_wrap=True, markup=False)


@app.command(name="export")
def export_(
    run: Folder,
    to: Annotated[str, typer.Option(help=f"format: {', '.join(FORMATS)}")],
    out: Annotated[Path, typer.Option(help="file to write; its suffix is added if it is missing")],
) -> None:
    """Export the network of a finished run, and check the file against the network."""
    with console.status(Text(f"exporting {run}")):
        _, table = export_run(run, to, out)
    console.print(table.rich())


@app.command()
def card(
    run: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    repetitions: Annotated[int, typer.Option(help="number of timings of each form", min=1)] = 20,
) -> None:
    """Measure the network of a finished run: weights, bytes, multiply-adds and latency, before and after compaction."""
    model, images = load_with_images(run)
    with errors.status(Text(f"measuring {run}")):
        measured = replace(measure_card(model, images[:1], repetitions=repetitions), network=read_settings(run).model)
    if as_json or as_markdown:
        console.file.write(measured.json() if as_json else measured.markdown())
        return
    for table in replace(measured, network=escape(measured.network)).rich_tables():
        console.print(table)
    for remark in measured.remarks:
        console.print(remark, soft_wrap=True, markup=False)


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

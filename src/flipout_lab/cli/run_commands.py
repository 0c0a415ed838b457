"""Commands for single runs: `flipout train`, `plan`, `show`, `evaluate`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from flipout import UnfinishedWarning
from flipout.export import card as measure_card

from .. import Settings, build, load, load_run
from .. import train as train_run
from ..data import DATA
from ..data.batches import prepare
from ..data.data_loading import check_image_size
from ..errors import LabError
from ..runs import run_views
from ..runs.exporting import FORMATS, export_run, load_with_images
from ..runs.pruning import attach, make_optimizer, steps_per_epoch
from ..runs.run_folder import read_settings
from ..runs.run_views import view_for
from ..runs.trackers import MLflow, TensorBoard, Tracker, WeightsAndBiases
from ..runs.training import StoppedError, evaluate
from .application import Folder, app, command_line, console, errors, settings_command


@settings_command(app)
def train(
    settings: Settings,
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the run (default: a folder below runs/, named by the settings)",
            metavar="FOLDER",
            rich_help_panel="Output",
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="also write event files for TensorBoard", metavar="", rich_help_panel="Output"
        ),
    ] = False,
    mlflow: Annotated[
        bool,
        typer.Option(
            "--mlflow", help="also log to MLflow, to files of the run by default", metavar="", rich_help_panel="Output"
        ),
    ] = False,
    wandb: Annotated[
        bool,
        typer.Option(
            "--wandb", help="also log to Weights & Biases, offline by default", metavar="", rich_help_panel="Output"
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="print nothing but errors", metavar="", rich_help_panel="Output")
    ] = False,
) -> None:
    """Train and prune a network. Run the command again to continue an interrupted run."""
    folder = out or Path("runs") / settings.folder_name()
    finished = (folder / "result.json").exists()
    asked: list[tuple[bool, type[Tracker]]] = [(tensorboard, TensorBoard), (mlflow, MLflow), (wandb, WeightsAndBiases)]
    try:
        with view_for(console, quiet) as view:
            result = train_run(settings, folder, view=view, trackers=[kind() for wanted, kind in asked if wanted])
    except StoppedError as stopped:
        resume = f"{stopped}. To continue, run the same command again:\n  {command_line()}"
        errors.print(resume, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
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

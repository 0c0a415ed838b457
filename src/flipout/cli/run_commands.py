"""Commands for single runs: `flipout train`, `plan`, `show`, `evaluate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from .. import lab
from ..lab.data import DATA
from ..lab.data.batches import prepare, validation_size
from ..lab.errors import LabError
from ..lab.runs import display as shown
from ..lab.runs.progress_view import view_for
from ..lab.runs.pruning import schedule
from ..lab.runs.run_folder import read_settings
from ..lab.runs.trackers import TensorBoard
from ..lab.runs.training import StoppedError, evaluate
from .application import Folder, app, command_line, console, errors, with_settings


@app.command()
@with_settings
def train(
    settings: lab.Settings,
    out: Annotated[Path | None, typer.Option(help="folder of the run (else in runs/, named by its settings)")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard's files too")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="say nothing but errors")] = False,
) -> None:
    """Train and prune a network; run again to go on where it was stopped."""
    folder = out or Path("runs") / settings.folder_name()
    finished = (folder / "result.json").exists()
    try:
        with view_for(console, quiet) as view:
            result = lab.train(settings, folder, view=view, trackers=[TensorBoard()] if tensorboard else [])
    except StoppedError as stopped:
        errors.print(f"{stopped}. To go on, run the same command again:\n  {command_line()}", soft_wrap=True)
        raise typer.Exit(130) from None
    if not quiet:
        if finished:
            console.print(f"{folder} is finished already; nothing was run", soft_wrap=True)
        console.print(shown.result_table(result))
        console.print(f"saved in {folder}", soft_wrap=True)


@app.command()
@with_settings
def plan(settings: lab.Settings) -> None:
    """Show when a network will be pruned, and to how many weights, before any training."""
    if settings.schedule is None or settings.sparsity is None:
        raise LabError(f"{settings.method} does not prune in steps; there is no plan to show")
    if settings.data in DATA:
        info = DATA[settings.data]
        images, shape, classes = info.train, info.shape, info.classes
    else:
        loaded = lab.load(settings.data, settings.image_size)
        images, shape, classes = len(loaded.train_labels), loaded.shape, loaded.classes
    if settings.validate_:
        images -= validation_size(settings.data, images)
    steps_per_epoch = math.ceil(images / settings.batch_size)
    model = lab.build(settings.model, shape, classes, settings.width)
    prunable = shown.prunable_weights(model)
    planned = schedule(settings, settings.total_epochs * steps_per_epoch, steps_per_epoch).plan(prunable)
    title = f"{settings.model}, {prunable:,} weights, {settings.epochs} epochs of {steps_per_epoch} steps"
    console.print(shown.plan_table(title, planned, steps_per_epoch))


@app.command()
def show(run: Folder) -> None:
    """Show what came out of a run, as tables."""
    for part in shown.run_tables(run):
        console.print(part)


@app.command(name="evaluate")
def evaluate_(run: Folder) -> None:
    """Measure a finished network again, on its test set."""
    settings = read_settings(run)
    model = lab.load_run(run)
    loaded = lab.load(settings.data, settings.image_size)
    _, held_out = prepare(loaded, next(model.parameters()).device, validate=settings.validate_)
    what = "validation images" if settings.validate_ else "test images"
    accuracy = evaluate(model, held_out)
    console.print(f"{run}: {accuracy:.4%} of {len(held_out):,} {what} of {settings.data}", soft_wrap=True)

"""The command line: `flipout train`, `plan`, `show`, `evaluate`, `export`, `card`, and what there is."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table

    from . import lab
except ModuleNotFoundError as error:
    sys.exit(f"the command line needs the lab ({error.name} is missing): pip install 'flipout[lab]'")

from .export import card as measure
from .lab import show as shown
from .lab.data import DATA
from .lab.data.batches import prepare, validation_size
from .lab.demo import demo as run_demo
from .lab.errors import LabError
from .lab.exporting import FORMS, export_run, load_with_images
from .lab.folders import read_settings
from .lab.methods import ABOUT, schedule
from .lab.models import MODELS
from .lab.progress import view_for
from .lab.run import StoppedError, evaluate
from .lab.settings import COMMON, METHOD_OPTIONS, SCHEDULED, fields, make_settings
from .lab.trackers import TensorBoard

app = typer.Typer(help="Prune networks while they train, and measure what comes out.", no_args_is_help=True)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Folder = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for every setting of a run, and the recipe that they override."""
    given = inspect.signature(command, eval_str=True).parameters
    own = [parameter for name, parameter in given.items() if name != "settings"]
    options = []
    for name, info in fields().items():
        flag = "--" + name.replace("_", "-")
        switch = info.annotation is bool
        declared = typer.Option(
            f"{flag}/--no-{flag[2:]}" if switch else flag, help=info.description, show_default=False
        )
        kind = Annotated[(bool if switch else str) | None, declared]  # type: ignore[valid-type]
        options.append(inspect.Parameter(f"set_{name}", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    def wrapped(**arguments: Any) -> None:
        chosen = {name: _value(arguments.pop(f"set_{name}")) for name in fields()}
        recipe = arguments.pop("recipe")
        overrides = {name: value for name, value in chosen.items() if value is not None}
        overrides = {name: None if value == "none" else value for name, value in overrides.items()}
        command(settings=make_settings(recipe, **overrides), **arguments)

    recipe = Annotated[str, typer.Option(help="recipe that the options override: default, paper, or a TOML file")]
    leading = inspect.Parameter("recipe", inspect.Parameter.KEYWORD_ONLY, default="default", annotation=recipe)
    parameters = [leading, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def _value(text: Any) -> Any:
    """Lists are written with commas: `--milestones 100,150`."""
    return [part for part in text.split(",") if part] if isinstance(text, str) and "," in text else text


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
        errors.print(f"{stopped}. To go on, run the same command again:\n  {_command()}", soft_wrap=True)
        raise typer.Exit(130) from None
    if not quiet:
        if finished:
            console.print(f"{folder} is finished already; nothing was run", soft_wrap=True)
        console.print(shown.result_table(result))
        console.print(f"saved in {folder}", soft_wrap=True)


def _command() -> str:
    return " ".join(["flipout", *(f"'{part}'" if " " in part else part for part in sys.argv[1:])])


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


@app.command(name="export")
def export_(
    run: Folder,
    to: Annotated[str, typer.Option(help=f"form: {', '.join(FORMS)}")],
    out: Annotated[Path, typer.Option(help="file to write; its suffix is added if it is missing")],
) -> None:
    """Write a finished network in a form to deploy, and check the file against the network."""
    with console.status(f"exporting {run}"):
        _, table = export_run(run, to, out)
    console.print(table)


@app.command()
def card(
    run: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    repetitions: Annotated[int, typer.Option(help="of each timing", min=1)] = 20,
) -> None:
    """Measure a finished network: weights, bytes, multiply-adds and milliseconds, dense, compacted and accelerated."""
    model, images = load_with_images(run)
    with errors.status(f"measuring {run}"):
        measured = replace(measure(model, images[:1], repetitions=repetitions), network=read_settings(run).model)
    if as_json or as_markdown:
        console.file.write(measured.json() if as_json else measured.markdown())
        return
    for table in measured.table():
        console.print(table)
    for remark in measured.remarks:
        console.print(remark, soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder of its runs")] = Path("runs/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", help="only the table at the end")] = False,
) -> None:
    """Compare five methods at three sparsities on the embedded digits, in about a minute."""
    run_demo(out, console, quiet=quiet)


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


def main() -> None:
    """Runs a command; what a user can mend is told without a traceback."""
    warnings.showwarning = lambda message, *_, **__: errors.print(f"warning: {message}", soft_wrap=True)
    try:
        app()
    except LabError as error:
        errors.print(f"error: {error}", soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

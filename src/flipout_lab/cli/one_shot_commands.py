"""Commands for a trained network: one-shot pruning, and the sensitivity of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import nn

import flipout

from ..errors import LabError
from ..runs import run_folder
from ..runs.networks import evaluate
from ..runs.one_shot import EXAMPLES, prune_run, read_trained
from ..tables import Table
from .application import app, console, errors

Source = Annotated[Path, typer.Argument(help="folder of a run, or a safetensors file", metavar="RUN|FILE")]
Model = Annotated[str | None, typer.Option(help="network of a safetensors file", metavar="NAME")]
DataSet = Annotated[str | None, typer.Option(help="data of a safetensors file", metavar="NAME")]
Width = Annotated[float | None, typer.Option(help="factor for the number of channels of a safetensors file")]
Method = Annotated[str, typer.Option(help="obs, wanda, magnitude or fisher", metavar="NAME")]
Granularity = Annotated[str, typer.Option(help="weight, kernel, channel, a block such as 4x1, or 2:4", metavar="UNIT")]
Units = Annotated[str, typer.Option(help="weight, kernel, or a block such as 4x1", metavar="UNIT")]
Examples = Annotated[int, typer.Option(help="number of training images to calibrate with", min=1)]
Exclude = Annotated[list[str] | None, typer.Option(help="weights to leave out, by name pattern; may be repeated")]


@app.command()
def prune(
    source: Source,
    sparsity: Annotated[float, typer.Option(help="share of the weights that are pruned", min=0, max=1)],
    out: Annotated[Path, typer.Option(help="folder for the pruned network", metavar="FOLDER")],
    method: Method = "obs",
    granularity: Granularity = "weight",
    scope: Annotated[str | None, typer.Option(help="global, layer or output (default: as the method has it)")] = None,
    floor: Annotated[int, typer.Option(help="the least number of weights that each layer keeps", min=0)] = 0,
    target: Annotated[str, typer.Option(help="the sparsity of: weights, macs, parameters or latency")] = "weights",
    round_to: Annotated[int, typer.Option(help="each layer keeps a multiple of this many channels", min=1)] = 1,
    residual: Annotated[bool, typer.Option(help="prune channels that norms mix, such as a residual stream")] = False,
    rounds: Annotated[int, typer.Option(help="prune in so many steps", min=1)] = 1,
    recalibrate: Annotated[bool, typer.Option(help="estimate the statistics of batch norms again")] = True,
    examples: Examples = EXAMPLES,
    seed: Annotated[int, typer.Option(help="seed of the choice of images")] = 0,
    exclude: Exclude = None,
    model: Model = None,
    data: DataSet = None,
    width: Width = None,
) -> None:
    """Prune a trained network in one shot, without training it again."""
    if (out / run_folder.CONFIG).exists():
        raise LabError(f"{out} holds a run; choose another --out")
    trained = read_trained(source, model=model, data=data, width=width)
    options: dict[str, Any] = {
        **{"sparsity": sparsity, "method": method, "granularity": granularity, "scope": scope, "floor": floor},
        **{"rounds": rounds, "recalibrate": recalibrate, "seed": seed, "exclude": exclude},
        **{"target": target, "round_to": round_to, "residual": residual},
    }
    before = evaluate(trained.model, trained.held_out)
    with bar("pruning") as progress:
        report, result = prune_run(trained, out, trained.settings, {**options, "progress": progress}, examples)
    measured = "validation" if trained.settings.validate_ else "test"
    rows = [
        ("weights kept", f"{report.nonzero:,} of {report.prunable:,}"),
        ("sparsity", f"{report.sparsity:.4%}"),
        (f"{measured} accuracy before", f"{before:.2%}"),
        (f"{measured} accuracy after", f"{run_folder.accuracy_in(result):.2%}"),
        ("seconds", f"{report.seconds:.1f}"),
        ("to fine-tune it", f"flipout train --method keep-zeros --init {out / run_folder.MODEL} ..."),
    ]
    console.print(str(report), soft_wrap=True, markup=False)
    console.print(Table("", (), rows, texts=(0, 1)).rich())
    console.print(f"saved in {out}", soft_wrap=True, markup=False)


@app.command()
def sensitivity(
    source: Source,
    sparsities: Annotated[str, typer.Option(help="sparsities to try", metavar="FLOAT,...")] = "0.5,0.7,0.9",
    loss: Annotated[bool, typer.Option("--loss", help="measure the loss in place of the outputs")] = False,
    limit: Annotated[
        float | None, typer.Option(help="also show the sparsity at which each layer changes so much")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw it into a file", metavar="FILE")] = None,
    method: Method = "obs",
    granularity: Units = "weight",
    examples: Examples = 500,
    exclude: Exclude = None,
    model: Model = None,
    data: DataSet = None,
    width: Width = None,
) -> None:
    """Show how much a trained network changes if one of its layers alone is pruned."""
    trained = read_trained(source, model=model, data=data, width=width)
    try:
        tried = tuple(float(each) for each in sparsities.split(","))
    except ValueError as error:
        raise LabError(f"--sparsities is {sparsities!r}; give numbers such as 0.5,0.7,0.9") from error
    try:
        with bar("measuring") as progress:
            found = flipout.sensitivity(
                trained.model,
                trained.batches(examples, 0),
                loss_fn=nn.functional.cross_entropy if loss or method == "fisher" else None,
                sparsities=tried,
                method=method,  # type: ignore[arg-type]
                granularity=granularity,
                exclude=exclude,
                progress=progress,
            )
    except (ValueError, FloatingPointError) as error:  # the library names the fix
        raise LabError(str(error)) from error
    console.print(str(found), soft_wrap=True, markup=False)
    if limit is not None:
        for name, sparsity in found.limits(limit).items():
            console.print(f"{name}: {sparsity:.2%}", soft_wrap=True, markup=False)
    if plot is not None:
        found.plot(plot)
        console.print(f"drawn into {plot}", soft_wrap=True, markup=False)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar of layers on the terminal."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, name: progress.update(task, completed=done, total=total, description=f"{what} {name}")

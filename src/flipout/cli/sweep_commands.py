"""Commands for many runs: `flipout demo`, `sweep`, `reproduce`, `claims`, `report`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..lab.errors import LabError
from ..lab.files import write_bytes
from ..lab.paper.reproduction import ITEMS, SCALES, check_item, grids_of, made_again
from ..lab.paper.results_page import results_page
from ..lab.reports import Records, collect, write_report
from ..lab.reports.fetch import fetched
from ..lab.reports.labels import by_network
from ..lab.reports.report_tables import accuracy_table
from ..lab.reports.seed_statistics import seeds_line
from ..lab.runs.training import StoppedError
from ..lab.sweeps import Engine, Grid, open_store, read_grid
from ..lab.sweeps import Report as Outcome
from ..lab.sweeps import sweep as run_sweep
from ..lab.sweeps.local_engine import Local
from ..lab.sweeps.ray_engine import Cluster
from ..lab.sweeps.store import is_url
from ..lab.sweeps.sweep_view import SweepView, summary_table, told_as
from .application import app, command_line, console, errors

Out = Annotated[str | None, typer.Option(help="folder or URL of the runs (else in runs/)")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="runs at a time (else one a core)")]
Threads = Annotated[int | None, typer.Option(min=1, help="threads of a run (else its share of the cores)")]
Ray = Annotated[str | None, typer.Option(help="run on a Ray cluster: auto, or its address")]
Gpus = Annotated[float, typer.Option(min=0, help="with --ray: GPUs of a run, or a share of one")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE for every run, such as device=cuda; may be given often")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder of its runs")] = Path("runs/demo"),
    setting: Setting = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the tables at the end")] = False,
) -> None:
    """Compare five methods at three sparsities on the embedded digits, in about a minute."""
    grid = _chosen("demo", None, setting)
    outcome = _sweep([grid], str(out), Local(), again=False, quiet=quiet)
    records = collect(out)
    for title, runs in by_network(records.runs).items():
        console.print(accuracy_table(f"{title}: test accuracy (%), last epoch, {seeds_line(runs)}", runs).rich())
    page = write_report(records, out / "report")
    pictures = sorted((page.parent / "figures").glob("*-results.png"))
    console.print(
        "\n".join([f"page: {page}", *(f"picture: {picture}" for picture in pictures)]), soft_wrap=True, markup=False
    )
    one = next(run.name for run in grid.runs() if run.settings.method == "flipout" and run.settings.sparsity == 0.97)
    program = "flipout" if shutil.which("flipout") else sys.argv[0]  # in an environment that was not activated
    following = (
        f"show {out}/{one}",
        f"card {out}/{one}",
        "train --data mnist --model lenet-300-100 --method flipout --sparsity 0.98 --epochs 10",
        "plan --model vgg19 --sparsity 0.999 --recipe paper",
        "methods",
    )
    console.print(
        "\n".join(["\nNext:", *(f"  {program} {command}" for command in following)]), soft_wrap=True, markup=False
    )
    if outcome.count("failed"):
        raise typer.Exit(1)


@app.command()
def sweep(
    grids: Annotated[list[str], typer.Argument(help="grid files, or names of grids that come with the lab")],
    out: Out = None,
    jobs: Jobs = None,
    threads: Threads = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    setting: Setting = None,
    part: Annotated[list[str] | None, typer.Option(help="only this part of the grids; may be given often")] = None,
    again: Annotated[bool, typer.Option("--again", help="try runs that diverged once more")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs, and run nothing")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the table at the end")] = False,
) -> None:
    """Run every run of a grid; run again to go on where it was stopped."""
    chosen = [_chosen(grid, part, setting) for grid in grids]
    if dry_run:
        for grid in chosen:
            for run in grid.runs():
                console.print(
                    f"{escape(told_as(run.settings))}  [dim]{escape(', '.join(run.parts))}[/]", soft_wrap=True
                )
        return
    outcome = _sweep(chosen, out or f"runs/{chosen[0].name}", _engine(jobs, threads, ray, gpus), again, quiet)
    if outcome.count("failed"):
        raise typer.Exit(1)


def _engine(jobs: int | None, threads: int | None, ray: str | None, gpus: float) -> Engine:
    if ray is None:
        return Local(jobs, threads)
    if jobs is not None:
        raise LabError("--jobs is for this machine; on a Ray cluster as many run as have room: leave it out")
    return Cluster(ray, threads, gpus)


def _sweep(chosen: list[Grid], out: str, engine: Engine, again: bool, quiet: bool) -> Outcome:
    store = open_store(out)
    try:
        outcome = run_sweep(chosen, store, engine, SweepView(console, quiet=quiet), again=again)
    except StoppedError as stopped:
        errors.print(
            f"{stopped}. To go on, run the same command again:\n  {command_line()}", soft_wrap=True, markup=False
        )
        raise typer.Exit(130) from None
    console.print(summary_table(outcome.status, outcome.reasons))
    console.print(f"saved in {store}", soft_wrap=True, markup=False)
    return outcome


def _chosen(name: str, parts: list[str] | None, settings: list[str] | None) -> Grid:
    grid = read_grid(name)
    for pair in settings or []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise LabError(f"--set {pair} is not KEY=VALUE")
        grid = grid.with_settings(**{key.replace("-", "_"): value})
    return grid.only(parts) if parts else grid


@app.command()
def reproduce(
    item: Annotated[str, typer.Argument(help=f"of the paper: {', '.join(ITEMS)}")],
    scale: Annotated[str, typer.Option(help=f"{', '.join(SCALES)}: minutes, hours, days on GPUs")] = "quick",
    out: Out = None,
    jobs: Jobs = None,
    threads: Threads = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    setting: Setting = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the tables at the end")] = False,
) -> None:
    """Make a table or a figure of the paper again, running what is not there yet."""
    check_item(item, scale)
    where, failed = out or f"runs/{scale}", 0
    records = Records("", ())
    if item != "table1":  # which is what the schedule says, without any run
        grids = [_chosen(name, [ITEMS[item]], setting) for name in grids_of(scale, ITEMS[item])]
        failed = _sweep(grids, where, _engine(jobs, threads, ray, gpus), again=False, quiet=quiet).count("failed")
        records = collect(fetched(where, None)[0])
    folder = Path("reproduced") if is_url(where) else Path(where) / "reproduced"
    tables, written = made_again(item, scale, records, folder)
    for table in tables:
        console.print(table.rich())
    console.print("\n".join(str(path) for path in written), soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def claims(
    results: Annotated[list[str], typer.Argument(help="folders of sweeps, or the results.json of reports")],
    out: Annotated[
        Path | None, typer.Option(help="write the page here, and its pictures beside it (else it is printed)")
    ] = None,
) -> None:
    """Hold the paper's claims against results, one by one: a page in Markdown."""
    records = [collect(fetched(name, None)[0]) for name in results]
    if out is None:
        console.print(results_page(records, command_line()), markup=False, soft_wrap=True)
    elif not out.suffix:
        raise LabError(f"--out {out} needs a name that ends in .md")
    else:
        pictures = out.with_suffix("")
        pictures.mkdir(parents=True, exist_ok=True)
        text = results_page(records, command_line(), pictures)
        write_bytes(out, text.encode())
        console.print(f"written: {out}", soft_wrap=True, markup=False)


@app.command()
def report(
    runs: Annotated[str, typer.Argument(help="folder or URL of a sweep, or the results.json of an earlier report")],
    out: Annotated[
        Path | None, typer.Option(help="folder of the report (else the folder report in that of the runs)")
    ] = None,
) -> None:
    """Make one page of many runs, with figures for print and tables."""
    folder, target, links = fetched(runs, out)
    path = write_report(collect(folder), target, runs_folder=links)
    console.print(
        f"page: {path}\nfigures: {target / 'figures'}\ntables: {target / 'tables'}", soft_wrap=True, markup=False
    )

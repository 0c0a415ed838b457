"""Commands for many runs: `flipout demo`, `sweep`, `reproduce`, `claims`, `report`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..errors import LabError
from ..files import write_bytes
from ..paper.cited_methods import render_cited_methods
from ..paper.paper_claims import claims_table
from ..paper.reproduction import ITEMS, SCALES, check_item, grids_of, reproduce_item
from ..paper.results_page import render_results_page
from ..reports import LeadChart, Records, collect, write_report
from ..reports.channels import with_call_times
from ..reports.inference import inference_chart
from ..reports.labels import by_network
from ..reports.records import known_results, locate_runs
from ..reports.report_tables import accuracy_table, paired_table
from ..reports.seed_statistics import seeds_line
from ..runs.settings import MOST_THREADS
from ..sweeps import Engine, Grid, Store, SweepOutcome, read_grid
from ..sweeps import sweep as run_sweep
from ..sweeps.execution import KnownResult, SweepView, describe_run
from ..sweeps.local_engine import LocalEngine
from ..sweeps.ray_engine import RayEngine
from ..sweeps.store import is_url
from .application import app, command_line, console

Out = Annotated[str | None, typer.Option(help="folder or URL of the runs (default: a folder below runs/)")]
Jobs = Annotated[
    int | None, typer.Option("-j", "--jobs", min=1, max=MOST_THREADS, help="runs at a time (default: one per core)")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="threads per run (default: an equal share of the cores)")
]
Ray = Annotated[str | None, typer.Option(help="run on a Ray cluster: auto, or its address")]
Gpus = Annotated[float, typer.Option(min=0, max=1024, help="with --ray: GPUs per run; a fraction shares a GPU")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE for every run, such as device=cuda; can be repeated")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder of the runs")] = Path("runs/demo"),
    setting: Setting = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the tables at the end")] = False,
) -> None:
    """Compare five methods at three sparsities on scikit-learn's digits, in about a minute."""
    grid = _read_grid("demo", None, setting)
    outcome = _sweep([grid], str(out), LocalEngine(), retry_diverged=False, quiet=quiet)
    records = collect(out)
    for title, runs in by_network(records.runs).items():
        console.print(accuracy_table(f"{title}: test accuracy (%), last epoch, {seeds_line(runs)}", runs).rich())
        if (differences := paired_table(f"{title}: difference to global magnitude, in points", runs)) is not None:
            console.print(differences.rich())
    pruned = [run for run in records.runs if run.settings.method == "flipout" and run.result is not None]
    first, next_steps = [], {}
    if pruned:
        remark = (
            "The networks pruned with FlipOut, on one thread: as they are (dense), without their dead channels "
            "(compacted), and with sparse kernels where those are faster (accelerated)."
        )
        first = [LeadChart("Milliseconds of inference against sparsity", inference_chart(pruned, out), remark)]
        next_steps = _next_steps(f"{out}/{pruned[-1].name}")
    page = write_report(records, out / "report", charts_first=first, next_steps=next_steps)
    pictures = sorted((page.parent / "figures").glob("in-short-*.png"))
    _print("\n".join([f"page: {page}", *(f"picture: {picture}" for picture in pictures)]))
    _print("\n".join(["\nNext:", *(f"  {command}" for command in next_steps)]))
    if outcome.count("failed"):
        raise typer.Exit(1)


def _next_steps(run: str) -> dict[str, str]:
    """Commands to try after the demo, each with what it does."""
    program = "flipout" if shutil.which("flipout") else sys.argv[0]  # if the environment is not activated
    commands = {
        f"show {run}": "One of the runs: its settings, epochs and layers.",
        f"card {run}": "Its bytes and milliseconds: dense, compacted and accelerated.",
        f"export {run} --to onnx --out net": "Its network as an ONNX file.",
        "train --granularity channel --target macs --sparsity 0.5": "Whole channels: half of the multiply-adds.",
        "train --data mnist --model lenet-300-100 --sparsity 0.98 --epochs 10": "Another network, on MNIST.",
        "methods": "All methods, with their options.",
    }
    return {f"{program} {command}": about for command, about in commands.items()}


@app.command()
def sweep(
    grids: Annotated[list[str], typer.Argument(help="grid files, or names of grids that come with the lab")],
    out: Out = None,
    jobs: Jobs = None,
    threads: Threads = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    setting: Setting = None,
    part: Annotated[list[str] | None, typer.Option(help="run only this part of the grids; can be repeated")] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(help="the results.json of an earlier report: its runs are not repeated; can be repeated"),
    ] = None,
    retry_diverged: Annotated[bool, typer.Option("--retry-diverged", help="repeat runs that diverged")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs without running them")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the table at the end")] = False,
) -> None:
    """Run all runs of a grid. Run the command again to continue an interrupted sweep."""
    chosen = [_read_grid(grid, part, setting) for grid in grids]
    if dry_run:
        for grid in chosen:
            for run in grid.runs():
                line = Text.assemble(describe_run(run.settings), "  ", (", ".join(run.parts), "dim"))
                console.print(line, soft_wrap=True)
        return
    engine = _engine(jobs, threads, ray, gpus)
    before = {name: result for path in known or [] for name, result in known_results(path).items()}
    outcome = _sweep(chosen, out or f"runs/{chosen[0].name}", engine, retry_diverged, quiet, before)
    if outcome.count("failed"):
        raise typer.Exit(1)


def _engine(jobs: int | None, threads: int | None, ray: str | None, gpus: float) -> Engine:
    if ray is None:
        return LocalEngine(jobs, threads)
    if jobs is not None:
        raise LabError(
            "--jobs does not apply to a Ray cluster, which runs as many jobs as its CPUs and GPUs allow: leave it out"
        )
    return RayEngine(ray, threads, gpus)


def _sweep(
    grids: list[Grid],
    out: str,
    engine: Engine,
    retry_diverged: bool,
    quiet: bool,
    known: Mapping[str, KnownResult] | None = None,
) -> SweepOutcome:
    store, view = Store(out), SweepView(console, quiet=quiet)
    outcome = run_sweep(grids, store, engine, view, retry_diverged=retry_diverged, known=known)
    console.print(outcome.table().rich())
    _print(f"saved in {store}")
    return outcome


def _print(text: str) -> None:
    """Print text that contains names of the user, which must not be interpreted as markup."""
    console.print(Text(text), soft_wrap=True)


def _read_grid(name: str, parts: list[str] | None, settings: list[str] | None) -> Grid:
    grid = read_grid(name)
    for pair in settings or []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise LabError(f"--set {pair} is not of the form KEY=VALUE")
        grid = grid.with_settings(**{key.replace("-", "_"): value})
    return grid.only(parts) if parts else grid


@app.command()
def reproduce(
    item: Annotated[str, typer.Argument(help=f"table or figure of the paper: {', '.join(ITEMS)}")],
    scale: Annotated[str, typer.Option(help=f"{', '.join(SCALES)}: minutes, hours, days on GPUs")] = "quick",
    out: Out = None,
    jobs: Jobs = None,
    threads: Threads = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    setting: Setting = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the tables at the end")] = False,
) -> None:
    """Reproduce a table or figure of the paper. Runs that are not finished yet are run first."""
    check_item(item, scale)
    location, failed = out or f"runs/{scale}", 0
    records = Records("", ())
    if item != "table1":  # table 1 shows the schedule and needs no runs
        grids = [_read_grid(name, [ITEMS[item]], setting) for name in grids_of(scale, ITEMS[item])]
        engine = _engine(jobs, threads, ray, gpus)
        failed = _sweep(grids, location, engine, retry_diverged=False, quiet=quiet).count("failed")
        records = collect(locate_runs(location).runs)
    folder = Path("reproduced") if is_url(location) else Path(location) / "reproduced"
    tables, written = reproduce_item(item, scale, records, folder)
    for table in tables:
        console.print(table.rich())
    _print("\n".join(str(path) for path in written))
    if failed:
        raise typer.Exit(1)


@app.command(name="claims")
def check_claims(
    results: Annotated[list[str], typer.Argument(help="folders of sweeps, or results.json files of reports")],
    out: Annotated[
        Path | None, typer.Option(help="write the page to this file, with its pictures next to it (default: print it)")
    ] = None,
) -> None:
    """Check the claims of the paper against results, and write a page in Markdown."""
    records = [collect(locate_runs(name).runs) for name in results]
    if out is None:
        _print(render_results_page(records, command_line()))
    elif not out.suffix:
        raise LabError(f"--out {out} needs a file name that ends in .md")
    else:
        pictures = out.with_suffix("")
        pictures.mkdir(parents=True, exist_ok=True)
        write_bytes(out, render_results_page(records, command_line(), pictures).encode())
        _print(f"written: {out}")


@app.command(name="cited")
def check_cited_methods(
    results: Annotated[
        str, typer.Argument(help="folder of the sweep cited-methods, or the results.json of its report")
    ],
    out: Annotated[Path | None, typer.Option(help="write the page to this file (default: print it)")] = None,
) -> None:
    """Put the methods that the paper cites beside the numbers of their own papers, on a page in Markdown."""
    page = render_cited_methods(collect(locate_runs(results).runs), command_line())
    if out is None:
        _print(page)
    else:
        write_bytes(out, page.encode())
        _print(f"written: {out}")


@app.command()
def report(
    runs: Annotated[str, typer.Argument(help="folder or URL of a sweep, or the results.json of an earlier report")],
    out: Annotated[
        Path | None, typer.Option(help="folder of the report (default: the folder report in the folder of the runs)")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="only the runs of this grid, if the folder has several")] = None,
) -> None:
    """Write a report on many runs: an HTML page, figures for print, and tables."""
    location = locate_runs(runs, out)
    records = collect(location.runs, grid)
    if location.runs.is_dir():
        records = with_call_times(records, location.runs)
    claims = claims_table("The claims of the paper", records)
    path = write_report(records, location.report, runs_folder=location.links, claims=claims)
    _print(f"page: {path}\nfigures: {location.report / 'figures'}\ntables: {location.report / 'tables'}")

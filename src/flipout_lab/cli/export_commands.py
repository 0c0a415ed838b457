"""Commands for finished runs: `flipout export`, `flipout card`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from flipout.export import card as measure_card

from ..runs.exporting import FORMATS, export_run, load_with_images
from ..runs.run_folder import read_settings
from .application import Folder, app, console, errors


@app.command(name="export")
def export_(
    run: Folder,
    to: Annotated[str, typer.Option(help=f"format: {', '.join(FORMATS)}")],
    out: Annotated[Path, typer.Option(help="file to write; its suffix is added if it is missing")],
) -> None:
    """Export the network of a finished run, and check the file against the network."""
    with console.status(Text(f"exporting {run}")):
        _, table = export_run(run, to, out)
    console.print(table)


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

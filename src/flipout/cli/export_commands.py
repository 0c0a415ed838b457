"""Commands for what comes after training: `flipout export`, `card`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..export import card as measure
from ..lab.runs.exporting import FORMS, export_run, load_with_images
from ..lab.runs.run_folder import read_settings
from .application import Folder, app, console, errors


@app.command(name="export")
def export_(
    run: Folder,
    to: Annotated[str, typer.Option(help=f"form: {', '.join(FORMS)}")],
    out: Annotated[Path, typer.Option(help="file to write; its suffix is added if it is missing")],
) -> None:
    """Write a finished network in a form to deploy, and check the file against the network."""
    with console.status(f"exporting {escape(str(run))}"):
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
    with errors.status(f"measuring {escape(str(run))}"):
        measured = replace(measure(model, images[:1], repetitions=repetitions), network=read_settings(run).model)
    if as_json or as_markdown:
        console.file.write(measured.json() if as_json else measured.markdown())
        return
    for table in measured.table():
        console.print(table)
    for remark in measured.remarks:
        console.print(remark, soft_wrap=True)

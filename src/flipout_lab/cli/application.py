"""What the commands share: the application and its consoles."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Prune networks while they train, and measure the result.", no_args_is_help=True)
# Names of the user are printed as they are: no highlighting, and ":smile:" is not an emoji.
console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)

Folder = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["flipout", *sys.argv[1:]])

"""The command line, one file for each kind of command."""

from __future__ import annotations

import sys
import warnings

import torch

try:
    from ..lab.errors import LabError
    from . import export_commands, list_commands, run_commands, sweep_commands
    from .application import app, console, errors
except ModuleNotFoundError as error:
    sys.exit(f"the command line needs the lab ({error.name} is missing): pip install 'flipout[lab]'")

__all__ = [
    "app",
    "console",
    "errors",
    "export_commands",
    "list_commands",
    "main",
    "process",
    "run_commands",
    "sweep_commands",
]


def process() -> None:
    """The command as a process of its own."""
    # The momentum of a pruned weight decays until it is denormal and stays so: slow arithmetic for nothing. Set before
    # torch starts its threads, which take it over.
    torch.set_flush_denormal(True)
    main()


def main() -> None:
    """Runs a command; what a user can mend is told without a traceback."""
    warnings.showwarning = lambda message, *_, **__: errors.print(f"warning: {message}", soft_wrap=True, markup=False)
    try:
        app()
    except LabError as error:
        errors.print(f"error: {error}", soft_wrap=True, markup=False)
        sys.exit(2)

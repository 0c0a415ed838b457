"""The command line, one file for each kind of command."""

from __future__ import annotations

import sys
import warnings

try:
    from ..lab.errors import LabError
    from . import lists, runs, sweeps
    from .shared import app, console, errors
except ModuleNotFoundError as error:
    sys.exit(f"the command line needs the lab ({error.name} is missing): pip install 'flipout[lab]'")

__all__ = ["app", "console", "errors", "lists", "main", "runs", "sweeps"]


def main() -> None:
    """Runs a command; what a user can mend is told without a traceback."""
    warnings.showwarning = lambda message, *_, **__: errors.print(f"warning: {message}", soft_wrap=True)
    try:
        app()
    except LabError as error:
        errors.print(f"error: {error}", soft_wrap=True)
        sys.exit(2)

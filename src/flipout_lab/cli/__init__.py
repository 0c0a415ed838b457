"""The command line, one file for each kind of command."""

from __future__ import annotations

import errno
import sys
import warnings

import torch

try:
    from ..errors import LabError, StoppedError
    from . import one_shot_commands, run_commands, sweep_commands
    from .application import app, command_line, console, errors
except ModuleNotFoundError as error:
    sys.exit(f"the command line needs the lab ({error.name} is missing): pip install 'flipout[lab]'")

__all__ = ["app", "console", "errors", "main", "one_shot_commands", "process", "run_commands", "sweep_commands"]

PANELS = {
    "Start here": ("demo", "train", "prune", "methods", "models", "data"),
    "One network": ("plan", "show", "evaluate", "sensitivity", "card", "export"),
    "Many runs": ("sweep", "report", "reproduce", "claims", "cited"),
}
"""The commands in the order of the help, by panel."""


def _arrange() -> None:
    """Put the commands into the order of the help."""
    commands = {each.name or str(getattr(each.callback, "__name__", "")): each for each in app.registered_commands}
    for panel, names in PANELS.items():
        for name in names:
            commands[name].rich_help_panel = panel
    app.registered_commands[:] = [commands.pop(name) for names in PANELS.values() for name in names]
    assert not commands, f"{list(commands)} is in no panel"


_arrange()

FIXABLE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space and run the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "check the permissions, or choose another folder"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR), "choose another name"),
}
"""Errors of the system that the user can fix, wherever they happen."""


def process() -> None:
    # The momentum of a pruned weight decays to a denormal number and stays one, which slows arithmetic down. This must
    # be set before torch starts its threads, which inherit it.
    torch.set_flush_denormal(True)
    main()


def main() -> None:
    """Run a command. An error that the user can fix is printed without a traceback."""
    warnings.showwarning = lambda message, *_, **__: errors.print(f"warning: {message}", soft_wrap=True, markup=False)
    try:
        app()
    except StoppedError as stopped:
        resume = f"{stopped}. To continue, run the same command again:\n  {command_line()}"
        errors.print(resume, soft_wrap=True, markup=False)
        sys.exit(130)
    except LabError as error:
        errors.print(f"error: {error}", soft_wrap=True, markup=False)
        sys.exit(2)
    except OSError as error:
        if error.errno not in FIXABLE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        errors.print(f"error: {where}{error.strerror}; {FIXABLE[error.errno]}", soft_wrap=True, markup=False)
        sys.exit(2)

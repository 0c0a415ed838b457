"""Errors that a user can fix. They are shown as one sentence that names the fix, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabError(Exception):
    """An error that the user can fix."""


class BusyError(LabError):
    """Another process is using the folder."""


class DivergedError(LabError):
    """The training diverged. A second run with the same settings would diverge again."""


def unknown(what: str, given: str, known: Iterable[str]) -> LabError:
    """The error for an unknown name. It suggests the closest known name, or lists all of them."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
    return LabError(f"unknown {what} {given!r}; {hint}")

"""What a user of the lab did or met, told in a sentence that names the fix; shown without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabError(Exception):
    """Something that the user can mend."""


class BusyError(LabError):
    """Another process works in the folder."""


class DivergedError(LabError):
    """The training broke down; run again with the same settings it would break down again."""


def unknown(what: str, given: str, known: Iterable[str]) -> LabError:
    """An unknown name, with the nearest known one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return LabError(f"unknown {what} {given!r}; {hint}")

"""Errors that a user can fix, shown as one sentence that names the fix; and the user's own code, found by its name."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class LabError(Exception):
    """An error that the user can fix."""


class BusyError(LabError):
    """Another process is using the folder."""


class StoppedError(LabError):
    """The run was asked to stop. It has saved a checkpoint and can be resumed."""


class DivergedError(LabError):
    """The training diverged. A second run with the same settings would diverge again."""


def unknown(what: str, given: str, known: Iterable[str]) -> LabError:
    """The error for an unknown name. It suggests the closest known name, or lists all of them."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
    return LabError(f"unknown {what} {given!r}; {hint}")


def optional_module(name: str, option: str, install: str) -> Any:
    """Import a module that an option needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LabError(f"{option} needs the package {name.partition('.')[0]}: pip install {install}") from error


def find(name: str, kind: str = "function") -> Callable[..., Any]:
    """Import `module:function`, or a class of the user, from the current folder or Python's path."""
    module_name, _, attribute = name.partition(":")
    current_folder = str(Path.cwd())
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError) as error:  # ValueError: an empty name
        if isinstance(error, ModuleNotFoundError) and error.name not in (module_name, module_name.split(".")[0]):
            raise  # the module exists, but one of its own imports is missing
        raise LabError(
            f"{name!r}: there is no module {module_name!r} in the current folder or on Python's path; give "
            f"module:{kind}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise LabError(f"{name!r}: the module {module_name!r} has no {kind} {attribute!r}")
    return found  # type: ignore[no-any-return]

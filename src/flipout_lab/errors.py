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


class DivergedError(LabError):
    """The training diverged. A second run with the same settings would diverge again."""


def unknown(what: str, given: str, known: Iterable[str]) -> LabError:
    """The error for an unknown name. It suggests the closest known name, or lists all of them."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
    return LabError(f"unknown {what} {given!r}; {hint}")


def find_function(name: str) -> Callable[..., Any]:
    """Import `module:function` and return the function."""
    return _find(name, "function")


def find_class(name: str) -> type[Any]:
    """Import `module:Class` and return the class."""
    found = _find(name, "class")
    if not isinstance(found, type):
        raise LabError(f"{name} is not a class; give module:Class")
    return found


def _find(name: str, kind: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    current_folder = str(Path.cwd())
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise  # the module exists, but one of its own imports is missing
        raise LabError(
            f"{name!r}: there is no module {module_name!r} in the current folder or on Python's path"
        ) from error
    except ValueError as error:  # an empty name
        raise LabError(f"{name!r} does not name a module; give module:{kind}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise LabError(f"{name!r}: the module {module_name!r} has no {kind} {attribute!r}")
    return found  # type: ignore[no-any-return]

"""Find functions and classes of the user by name, `module:name`. Modules are also searched in the current folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import LabError


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

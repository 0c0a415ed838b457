"""A user's own functions and classes by name: `module:name`, imported as Python does, the current folder included."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import LabError


def find_function(name: str) -> Callable[..., Any]:
    """Import `module:function`."""
    return _find(name, "function")


def find_class(name: str) -> type[Any]:
    """Import `module:Class`."""
    found = _find(name, "class")
    if not isinstance(found, type):
        raise LabError(f"{name} is not a class; give module:Class")
    return found


def _find(name: str, kind: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise  # the module exists, but one that it imports does not
        raise LabError(f"there is no module {module_name!r} here or on Python's path, named by {name!r}") from error
    except ValueError as error:  # an empty name
        raise LabError(f"{name!r} does not name a module; give module:{kind}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise LabError(f"the module {module_name!r} has no {kind} {attribute!r}, named by {name!r}")
    return found  # type: ignore[no-any-return]

"""A user's own functions by name: `module:function`, found as Python finds modules, the current folder included."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import LabError


def find_function(name: str) -> Callable[..., Any]:
    """Imports `module:function`."""
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise  # the module is there, but needs another one
        raise LabError(f"there is no module {module_name!r} here or on Python's path, named by {name!r}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise LabError(f"the module {module_name!r} has no function {function_name!r}, named by {name!r}")
    return function  # type: ignore[no-any-return]

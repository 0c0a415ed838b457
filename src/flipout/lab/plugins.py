"""Find a function of the user by its name, `module:function`. Modules are also searched in the current folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import LabError


def find_function(name: str) -> Callable[..., Any]:
    """Import `module:function` and return the function."""
    module_name, _, function_name = name.partition(":")
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
    function = getattr(module, function_name, None)
    if not callable(function):
        raise LabError(f"{name!r}: the module {module_name!r} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]

"""Settings as plain data: a description that can be saved and compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any


def describe(thing: Any) -> Any:
    """Describe a thing with numbers, strings, lists and dicts, which `weights_only=True` loads and `==` compares."""
    if thing is None or isinstance(thing, (bool, str)):
        return thing
    if isinstance(thing, Integral):
        return int(thing)
    if isinstance(thing, Real):
        return float(thing)
    if isinstance(thing, Mapping):
        return {key: describe(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        return {"name": type(thing).__qualname__} | {f.name: describe(getattr(thing, f.name)) for f in fields(thing)}
    if callable(thing):
        function = thing
        while isinstance(function, partial):
            function = function.func
        named = function if hasattr(function, "__qualname__") else type(function)
        # A script may be resumed by another script that imports it, so `__main__` is left out.
        name = named.__qualname__ if named.__module__ == "__main__" else f"{named.__module__}.{named.__qualname__}"
        parameters = inspect.signature(thing).parameters.values()
        return {"name": name} | {p.name: describe(p.default) for p in parameters if p.default is not p.empty}
    return repr(thing)


def difference(saved: Any, here: Any, places: tuple[str, str] = ("in the state", "here"), path: str = "") -> list[str]:
    """One line for each place where two descriptions differ."""
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        keys = [*here, *(key for key in saved if key not in here)]
        return [
            line
            for key in keys
            for line in difference(
                saved.get(key, "absent"), here.get(key, "absent"), places, f"{path}.{key}" if path else str(key)
            )
        ]
    return [] if saved == here else [f"{path}: {saved} {places[0]}, {here} {places[1]}"]

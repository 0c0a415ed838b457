"""Settings as plain data: what a criterion asks for, what a pruner was made with, and where two of them differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any


def requested(criterion: Callable[..., Any], known: Iterable[str]) -> list[str]:
    """The statistics a criterion asks for: its arguments without a default."""
    try:
        parameters = inspect.signature(criterion).parameters.values()
    except (ValueError, TypeError):
        raise ValueError(
            f"{criterion} does not tell its arguments; wrap it: lambda weight: {criterion}(weight)"
        ) from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named if p.default is p.empty]
    if not names:
        raise ValueError("the criterion asks for nothing; its arguments name what it needs, such as `weight`")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"the criterion asks for {', '.join(unknown)}, which is not tracked; there are {', '.join(known)}. Give a "
            "setting a default value, or a statistic of your own to statistics="
        )
    return names


def describe(thing: Any) -> Any:
    """Numbers, strings, lists and dicts alone, so that it can be compared and loaded with `weights_only=True`."""
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
        # A script may be resumed from another one that imports it, so its own name does not count.
        name = named.__qualname__ if named.__module__ == "__main__" else f"{named.__module__}.{named.__qualname__}"
        parameters = inspect.signature(thing).parameters.values()
        return {"name": name} | {p.name: describe(p.default) for p in parameters if p.default is not p.empty}
    return repr(thing)


def difference(saved: Any, here: Any, path: str = "") -> list[str]:
    """A line for each place where two settings differ."""
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        keys = [*here, *(key for key in saved if key not in here)]
        return [
            line
            for key in keys
            for line in difference(saved.get(key, "absent"), here.get(key, "absent"), f"{path}.{key}" if path else key)
        ]
    return [] if saved == here else [f"{path}: {saved} in the state, {here} here"]

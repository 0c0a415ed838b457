"""Methods by name: registered ones, and a user's own classes as `module:Class`."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from flipout import METHODS, Method, Pruner
from flipout.methods.registry import PALETTE

from ..errors import LabError, unknown
from ..plugins import find_class


def find_method(name: str) -> Method:
    """Return the record of a method. An unknown name is an error that suggests the nearest."""
    if ":" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "module:Class"])
        return METHODS[name]
    cls = find_class(name)
    if not issubclass(cls, Pruner):
        raise LabError(f"{name} is not a method: it is not a subclass of flipout.Pruner")
    key: Any = cls  # a class is hashable, whatever mypy makes of its instances
    return _record_of(key, name)


@cache  # a record reads the signature of its class once
def _record_of(cls: Any, name: str) -> Method:
    record = METHODS.record_of(cls, name)
    try:
        _ = record.parameters
    except NameError as error:
        raise LabError(f"the annotations of {name} cannot be resolved: {error}") from error
    return record


def find_method_or_none(name: str) -> Method | None:
    """Return the record of a method, or None where it cannot be imported: results outlive the code they came from."""
    try:
        return find_method(name)
    except Exception:  # importing a user's module may raise anything
        return None


def method_title(name: str) -> str:
    """Return the name of a method in reports."""
    record = find_method_or_none(name)
    return name if record is None else record.title


def method_colour(name: str) -> str:
    """Return the colour of a method in figures."""
    record = find_method_or_none(name)
    return PALETTE[hashlib.sha256(name.encode()).digest()[0] % len(PALETTE)] if record is None else record.colour

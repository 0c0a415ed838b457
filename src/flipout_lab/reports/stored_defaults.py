"""The defaults of methods in results.json, so that old results keep their meaning when a default changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from ..runs.method_lookup import find_method_or_none
from ..runs.method_options import NONE, options_of


def current_defaults(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The default of every option of these methods, as plain data. Methods that cannot be imported are left out."""
    found = {}
    for method in sorted(set(methods)):
        if (record := find_method_or_none(method)) is not None:
            defaults = {key: option.default for key, option in options_of(record).items() if option.has_default}
            found[method] = to_jsonable_python({key: NONE if v is None else v for key, v in defaults.items()})
    return found


def changed_defaults(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The stored defaults that are different now, by method. Options that a method no longer has are left out."""
    now = current_defaults(stored)
    return {
        method: {key: value for key, value in options.items() if key in now[method] and now[method][key] != value}
        for method, options in stored.items()
        if method in now
    }

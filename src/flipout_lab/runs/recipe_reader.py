"""Recipes: settings in a TOML file, one that comes with the lab or a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import LabError, unknown
from ..files import is_file, read_toml
from .method_lookup import find_method
from .method_options import all_option_keys, options_of
from .settings import Settings, check_combination, fields, flag, validated


def make_settings(recipe: str = "default", **overrides: Any) -> Settings:
    """Return the settings of a recipe with some of them overridden; an invalid value is an error that names it."""
    chosen = overrides.get("method")
    values = {**read_recipe(recipe, [] if chosen is None else [str(chosen)]), **overrides}
    method = str(values.get("method") or fields()["method"].default)
    check_keys(overrides, "setting", [method])
    record = find_method(method)
    if not record.takes_schedule:
        # A recipe says when to prune, for the methods that prune under a schedule. Asking another one for it is an
        # error.
        if overrides.get("schedule") is not None:
            raise LabError(f"{method} takes no {flag('schedule')}: it decides by itself when to prune")
        values.pop("schedule", None)
    check_combination(method, {key: value for key, value in values.items() if value is not None})
    return validated(values)


def read_recipe(name: str, methods: Iterable[str] = ()) -> dict[str, Any]:
    """Return the content of a recipe: the name of one that comes with the lab, or a TOML file.

    It may have options of the method that it names, of `methods`, and of all registered methods.
    """
    shipped = {
        path.name.removesuffix(".toml"): path
        for path in resources.files(f"{__package__}.recipes").iterdir()
        if path.name.endswith(".toml")
    }
    if not isinstance(name, str):  # from a grid file
        raise LabError(f"recipe is {name!r}; give the name of a recipe in quotes: {', '.join(shipped)}, or a TOML file")
    if name not in shipped and not is_file(name):
        raise unknown("recipe", name, [*shipped, "a TOML file"])
    values = read_toml(shipped.get(name, Path(name)), f"the recipe {name}")
    named = [str(values["method"])] if "method" in values else []
    check_keys(values, f"setting in the recipe {name}:", [*named, *methods])
    return values


def check_keys(values: Mapping[str, Any], what: str, methods: Iterable[str] = ()) -> None:
    """Refuse a key that is neither a setting nor an option of a method, and suggest the nearest.

    `methods` are names of methods whose options are known besides those of all registered ones.
    """
    if not values.keys() - fields().keys():
        return
    known = {*fields(), *all_option_keys()}
    if values.keys() <= known:
        return
    known.update(key for name in methods for key in options_of(find_method(name)))
    for key in values:
        if key not in known:
            raise unknown(what, key, sorted(known))

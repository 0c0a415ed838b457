"""Grids: a base run, and parts in which every setting with a list of values is an axis.

Tables [[part]] with the same name form one part. A table with a list of names belongs to several parts.

    title = "LeNet-300-100 on MNIST"

    [base]                               # settings of every run; `recipe` names the recipe that they override
    recipe = "default"
    model = "lenet-300-100"

    [[part]]                             # every method, at every sparsity, with every seed
    name = "results"
    method = ["flipout", "magnitude"]
    sparsity = [0.9375, 0.99609375]
    seed = [0, 1, 2]

    [[part]]                             # combinations of settings
    name = "ablation"
    variants = [{ method = "flipout", noise = 0.0 }, { method = "magnitude", noise = 1.0 }]
    sparsity = [0.9375, 0.99609375]
    seed = [0, 1, 2]

Runs are in the order of the file; in a table, the last axis varies fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import LabError, unknown
from ..files import is_file, read_toml
from ..runs.pruning import check_method_options
from ..runs.settings import Settings, make_settings

LISTS = {"milestones"}  # settings whose value is a list; an axis is then a list of lists


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid, and the parts of the grid that it belongs to."""

    settings: Settings
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.settings.folder_name()


@dataclass(frozen=True)
class GridTable:
    """A table [[part]] of a grid file: the parts that its runs belong to, and its axes."""

    parts: tuple[str, ...]
    axes: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """The content of a grid file. `runs()` returns its runs."""

    name: str
    title: str
    base: Mapping[str, Any]
    tables: Sequence[GridTable]
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The names of all parts, in the order of the file."""
        return list(dict.fromkeys(part for table in self.tables for part in table.parts))

    def runs(self) -> list[PlannedRun]:
        """All runs, in the order of the file. A run that several parts share is listed once, with all its parts."""
        planned: dict[str, PlannedRun] = {}
        for table in self.tables:
            for settings in self._expand(table):
                name = settings.folder_name()
                before = planned.get(name, PlannedRun(settings, ()))
                planned[name] = replace(before, parts=tuple(dict.fromkeys((*before.parts, *table.parts))))
        return list(planned.values())

    def only(self, parts: Sequence[str]) -> Grid:
        for part in parts:
            if part not in self.parts:
                raise unknown(f"part of the grid {self.name}:", part, self.parts)
        shared = ((tuple(part for part in table.parts if part in parts), table.axes) for table in self.tables)
        return replace(self, tables=[GridTable(names, axes) for names, axes in shared if names])

    def with_settings(self, **settings: Any) -> Grid:
        """The same grid with these settings for every run. They override the base and the parts."""
        return replace(self, overrides={**self.overrides, **settings})

    def _expand(self, table: GridTable) -> Iterator[Settings]:
        base = {key: value for key, value in self.base.items() if key != "recipe"}
        recipe = self.base.get("recipe", "default")
        choices = [list(_choices(key, value)) for key, value in table.axes.items()]
        for combination in itertools.product(*choices):
            chosen: dict[str, Any] = {}
            for setting in combination:
                chosen |= setting
            try:
                settings = make_settings(recipe, **{**base, **chosen, **self.overrides})
                check_method_options(settings)
                yield settings
            except LabError as error:
                raise LabError(f"{_place(table.parts, self.name)} has an invalid run: {error}") from None


def _choices(key: str, value: Any) -> Iterator[dict[str, Any]]:
    if key == "variants":
        yield from value
    elif isinstance(value, list) and (key not in LISTS or (value and isinstance(value[0], list))):
        yield from ({key: each} for each in value)
    else:
        yield {key: value}


def shipped_grids() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in (resources.files(__package__) / "grids").iterdir())


def read_grid(name: str | Path) -> Grid:
    """Read a grid from a file, or a grid that comes with the lab by its name."""
    stem = Path(name).stem if is_file(name) else str(name)
    if not is_file(name) and stem not in shipped_grids():
        raise unknown("grid", stem, [*shipped_grids(), "a TOML file"])
    path = Path(name) if is_file(name) else resources.files(__package__) / "grids" / f"{name}.toml"
    return parse_grid(stem, read_toml(path, f"the grid {stem}"))


def parse_grid(name: str, content: Mapping[str, Any]) -> Grid:
    """Check the structure of a grid file. The values of settings are checked when `Grid.runs` creates them."""
    for key in content:
        if key not in ("title", "base", "part"):
            raise unknown(f"key in the grid {name}:", key, ["title", "base", "part"])
    base = content.get("base", {})
    listed = content.get("part", [])
    if not isinstance(base, dict) or not isinstance(listed, list) or not all(isinstance(part, dict) for part in listed):
        raise LabError(f"the grid {name} needs a table [base] and tables [[part]]; see docs/sweeps.md")
    if not listed:
        raise LabError(f"the grid {name} has no [[part]]: add one with what varies, for example seed = [0, 1, 2]")
    tables = []
    for number, table in enumerate(listed, 1):
        named = table.get("name", f"part {number}")
        parts = tuple(map(str, named if isinstance(named, list) else [named]))
        if not parts:
            raise LabError(f"table {number} of the grid {name} has an empty list of names; give at least one")
        axes = {key: value for key, value in table.items() if key != "name"}
        _check_axes(_place(parts, name), axes)
        tables.append(GridTable(parts, axes))
    return Grid(name, str(content.get("title", name)), base, tables)


def _place(parts: Sequence[str], grid: str) -> str:
    return f"the part {', '.join(map(repr, parts))} of the grid {grid}"


def _check_axes(where: str, axes: Mapping[str, Any]) -> None:
    variants = axes.get("variants", [{}])
    if not isinstance(variants, list) or not variants or not all(isinstance(variant, dict) for variant in variants):
        raise LabError(f"{where} needs variants = [{{ setting = value, ... }}, ...]")
    for key, value in axes.items():
        if value == []:
            raise LabError(f"{where} has an empty list for {key}; give at least one value")

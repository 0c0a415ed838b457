"""The structure of the package: what may import what, and names that say one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import flipout

SOURCE = Path(flipout.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def room_of(path: Path) -> str:
    """The room of a file: the module or the package directly below `flipout` that it belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports, wherever it does: at the top, for types alone, or inside a function."""
    package = ("flipout", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield from ((*base, *module, alias.name) for alias in node.names)


ROOMS = {room_of(path) for path in FILES} - {"__init__"}
PUBLIC = {
    alias.asname or alias.name: node.module.split(".")[0]
    for node in TREES[SOURCE / "__init__.py"].body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
"""The room of each public name: `from flipout import Pruner` is an import of the room `pruner`."""


def rooms_of(path: Path) -> set[str]:
    """The rooms that a file imports from, without its own."""
    names = {module[1] for module in imported(path) if module[0] == "flipout" and len(module) > 1}
    return {PUBLIC.get(name, name) for name in names} & ROOMS - {room_of(path)}


GRAPH = {room: set[str]().union(*(rooms_of(path) for path in FILES if room_of(path) == room)) for room in ROOMS}
"""For each room, the rooms that it imports from."""


def test_no_room_imports_itself_through_others() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        places = [
            f"{path.relative_to(SOURCE)} imports {above}"
            for below, above in pairwise(circle)
            for path in FILES
            if room_of(path) == below and above in rooms_of(path)
        ]
        pytest.fail(f"{' -> '.join(circle)}: {'; '.join(places)}")


CORE = ROOMS - {"aim", "export", "integrations", "methods", "one_shot", "lab", "cli"}
MATHEMATICS = {"channels", "numerics", "random_numbers", "ranking", "statistics", "views"}


@pytest.mark.parametrize(
    ("rooms", "unknown"),
    [
        (MATHEMATICS, {"events", "forms", "guards", "host", "pruner", "shrinking", "state", "units", "weights"}),
        ({"modules", "numerics", "problems", "schedules", "criteria", "text_table", "version"}, ROOMS),
        ({"runtime"}, {"forms", "guards", "host", "pruner", "shrinking", "units"}),
        ({"forms", "guards", "units", "shrinking", "state"}, {"pruner"}),
        ({"forms"}, {"guards", "shrinking", "units"}),
        ({"units"}, {"forms", "guards", "shrinking"}),
        (CORE, {"aim", "export", "integrations", "methods", "one_shot"}),
        ({"export"}, {"pruner", "methods", "forms", "guards", "units", "shrinking", "one_shot"}),
        ({"one_shot"}, {"pruner", "forms", "guards", "host", "shrinking", "state"}),
        (ROOMS - {"lab", "cli"}, {"lab", "cli", "integrations"}),
    ],
)
def test_what_a_room_does_not_know(rooms: set[str], unknown: set[str]) -> None:
    for room in rooms:
        assert not GRAPH[room] & unknown, room


def test_the_library_does_not_know_the_lab() -> None:
    for path in FILES:
        assert "flipout_lab" not in {module[0] for module in imported(path)}, path


def test_importing_the_package_imports_no_framework() -> None:
    frameworks = {"lightning", "transformers", "accelerate", "peft", "mlflow", "wandb", "flipout_lab"}
    code = f"import sys, flipout; print(*sorted({frameworks} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == []


def test_no_two_public_classes_have_one_name() -> None:
    """A class is public if its package exports it, or if it stands in a module directly below `flipout`."""
    classes = Counter(
        node.name
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and (path.parent == SOURCE or node.name in exported(path.parent))
    )
    assert [name for name, count in classes.items() if count > 1] == []


def exported(package: Path) -> set[str]:
    """The names that the `__init__` of a package takes from its modules."""
    imports = (node for node in TREES[package / "__init__.py"].body if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports for alias in node.names}


def test_no_public_name_of_a_package_is_also_one_of_its_modules() -> None:
    for path in FILES:
        if path.name != "__init__.py":
            continue
        modules = {other.stem for other in path.parent.glob("*.py")}
        modules |= {other.name for other in path.parent.iterdir() if (other / "__init__.py").exists()}
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.ImportFrom) and node.module:
                clashing = {alias.asname or alias.name for alias in node.names} & modules
                assert not clashing, f"{path}: {clashing}"

"""The structure of the package: what may import what, and names that say one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import flipout

SOURCE = Path(flipout.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

BELOW = {
    "criteria": set(),
    "schedules": set(),
    "numerics": set(),
    "positions": set(),
    "random_numbers": {"positions"},
    "shards": {"positions"},
    "selection": set(),
    "kernels": set(),
    "statistics": {"numerics", "positions", "random_numbers"},
    "graph": {"layer_kinds", "layers", "numerics", "runtime", "statistics"},
    "granularity": {
        "events",
        "graph",
        "layer_kinds",
        "layers",
        "pruning_event",
        "runtime",
        "schedules",
        "selection",
        "warnings",
    },
    "runtime": {
        "criteria",
        "hidden_values",
        "layers",
        "numerics",
        "positions",
        "random_numbers",
        "revival",
        "shards",
        "statistics",
        "warnings",
    },
}
"""What each room of the core may import."""


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, by their full names."""
    package = ("flipout", *path.relative_to(SOURCE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flipout":
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def rooms(path: Path) -> set[str]:
    return {module.split(".")[1] for module in imports(path) if module.startswith("flipout.")}


def test_the_core_knows_nothing_of_export_and_the_lab() -> None:
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ("__init__", "cli", "lab"):
            continue
        assert not rooms(path) & {"lab", "cli"}, path
        if room != "export":
            assert "export" not in rooms(path), path
        if room not in ("methods", "export"):
            assert "methods" not in rooms(path), path
        if room != "integrations":
            assert "integrations" not in rooms(path), path


def test_importing_the_package_imports_no_framework() -> None:
    frameworks = {"lightning", "transformers", "accelerate", "peft", "mlflow", "wandb"}
    code = f"import sys, flipout, flipout.layers; print(*sorted({frameworks} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == []


def test_the_rooms_of_the_core_are_layered() -> None:
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in BELOW:
            assert rooms(path) <= BELOW[room] | {room}, path


def test_no_two_files_and_no_two_classes_have_one_name() -> None:
    files = Counter(path.name for path in FILES if not path.name.startswith("__"))
    assert [name for name, count in files.items() if count > 1] == []
    classes = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_no_public_name_of_a_package_is_also_one_of_its_modules() -> None:
    for path in FILES:
        if path.name != "__init__.py":
            continue
        modules = {other.stem for other in path.parent.glob("*.py")}
        modules |= {other.name for other in path.parent.iterdir() if (other / "__init__.py").exists()}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                clashing = {alias.asname or alias.name for alias in node.names} & modules
                assert not clashing, f"{path}: {clashing}"

"""The structure of the lab: a package of its own that the library does not know, in layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flipout
import flipout_lab

LIBRARY = Path(flipout.__file__).parent
LAB = Path(flipout_lab.__file__).parent

ROOMS = ("models", "data", "runs", "sweeps", "reports", "paper", "cli")
"""The rooms of the lab. Each imports those before it only."""


def imports(path: Path) -> set[str]:
    """The modules that a file imports, by their full names."""
    source = LIBRARY.parent
    package = path.relative_to(source).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def test_the_library_does_not_import_the_lab() -> None:
    for path in LIBRARY.rglob("*.py"):
        assert not any(module.split(".")[0] == "flipout_lab" for module in imports(path)), path


def test_the_rooms_of_the_lab_are_layered() -> None:
    for path in LAB.rglob("*.py"):
        room = path.relative_to(LAB).parts[0]
        if room in ROOMS:
            above = set(ROOMS[ROOMS.index(room) + 1 :])
            assert not above & {module.split(".")[1] for module in imports(path) if module.startswith("flipout_lab.")}


def test_the_lab_has_every_public_name() -> None:
    for name in flipout_lab.__all__:
        assert getattr(flipout_lab, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = flipout_lab.nothing


def test_the_command_line_without_its_dependencies_names_the_extra() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import flipout_lab.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "flipout[lab]" in done.stderr
    assert "Traceback" not in done.stderr

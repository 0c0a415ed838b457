"""The hooks of the build: compile the kernels in C, if there is a compiler, and make the README readable on PyPI.

A source distribution has the sources of the kernels alone. They are compiled where it is installed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import sys_tags

FILES = "https://github.com/flipout/flipout/blob/main/"
PICTURES = "https://raw.githubusercontent.com/flipout/flipout/main/"


class ReadmeHook(MetadataHookInterface):
    """The README with links and pictures that work outside the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?://|#)", f"]({FILES}", text)
        text = text.replace('<img src="', f'<img src="{PICTURES}')
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class KernelsHook(BuildHookInterface[Any]):
    """Put the shared library beside its sources, for a wheel as for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "src", "flipout", "kernels")
        build = _module(folder / "build.py")
        library = folder / build.LIBRARY
        if (problem := build.build(library)) is not None:
            library.unlink(missing_ok=True)
            print(f"flipout is installed without its fast kernels for sparse layers: {problem}", file=sys.stderr)
            return
        build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"  # the library does not use Python's C interface


def _module(path: Path) -> ModuleType:
    """A file as a module, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform() -> str:
    """The platform of this machine, as in the name of a wheel. For Linux, auditwheel makes it one for distribution."""
    if sys.platform == "darwin" and (oldest := os.environ.get("MACOSX_DEPLOYMENT_TARGET")):
        return f"macosx_{oldest.replace('.', '_')}_{platform.machine()}"
    platforms = (tag.platform for tag in sys_tags())
    return next(name for name in platforms if not name.startswith(("manylinux", "musllinux")))

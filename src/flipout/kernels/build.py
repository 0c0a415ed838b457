"""Build the kernels: `python -m flipout.kernels.build`. The installation does this by itself.

It needs a C compiler (`$CC`, cc, gcc or clang) and nothing else. This file imports nothing of the package, because the
installation runs it before the package exists.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).with_name("c")
LIBRARY = "_kernels.so"
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-ffp-contract=fast")
GCC_FLAGS = ("-Wno-psabi", "-fno-tree-loop-distribute-patterns")
"""What clang does not know: copies of a few numbers stay loops, and do not become calls."""
EXACT = ("-ffp-contract=off", "-fno-trapping-math", "-fno-strict-aliasing")
"""For the loops around a step: each operation rounds once, as it does in torch."""
X86 = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"),
}
"""The instruction sets of x86-64 beyond the plain one, and their options."""


def compiler() -> list[str] | None:
    """The command of a C compiler, or None."""
    if given := os.environ.get("CC"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def build(target: Path, options: Sequence[str] = ()) -> str | None:
    """Build the kernels into a file; return None, or why that was not possible.

    The loops are compiled once for each instruction set. A compiler that does not know them all builds the plain one.
    """
    if (command := compiler()) is None:
        return "there is no C compiler (cc, gcc or clang)"
    sets = X86 if platform.machine().lower() in ("x86_64", "amd64") else {}
    problem = ""
    for more, known in ((GCC_FLAGS, sets), ((), sets), ((), {})):
        try:
            _build(command, target, known, (*more, *options))
        except OSError as error:
            return f"{command[0]} cannot be run: {error}"
        except subprocess.CalledProcessError as error:
            problem = problem or str(error.stderr)
        else:
            return None
    return problem


def _build(command: list[str], target: Path, sets: dict[str, tuple[str, ...]], options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, tuple[str, ...]] = {}
        for name, more in {"plain": (), **sets}.items():
            jobs[name] = ("layer.c", *more, f"-DINSTRUCTIONS={name}")
            jobs[f"{name}_norm"] = ("norm.c", *more, f"-DINSTRUCTIONS={name}_norm")
            jobs[f"{name}_step"] = ("step.c", *more, *EXACT, f"-DINSTRUCTIONS={name}_step")
        jobs |= {"kernels": ("kernels.c", *(["-DHAS_X86"] if sets else [])), "parallel": ("parallel.c",)}
        objects = [Path(folder) / f"{name}.o" for name in jobs]
        for path, (source, *own) in zip(objects, jobs.values(), strict=True):
            _run([*command, *FLAGS, *options, *own, "-c", str(SOURCES / source), "-o", str(path)])
        library = Path(folder) / target.name
        _run([*command, "-shared", *options, "-o", str(library), *map(str, objects), "-lpthread", "-lm"])
        # A process may have the old file loaded: it keeps it, because this is a new file in its place.
        copy = target.with_name(f"{target.name}.new")
        shutil.copyfile(library, copy)
        copy.replace(target)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    raise SystemExit(build(Path(__file__).with_name(LIBRARY)))

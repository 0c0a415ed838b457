"""The kernels are optional: what happens without a compiler, and that they stay within their memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from flipout.kernels import build, library
from flipout.kernels.direct_layers import direct_layer

from .networks import pruned, step

LAYERS = """
import sys, torch
from pathlib import Path
from flipout.kernels import library
library.FILE = Path(sys.argv[1])
from flipout.kernels import sparse_convolution
sparse_convolution.WORK_OF_A_THREAD = 1
from flipout.kernels.geometry import Convolution
from tests.kernels.test_sparse_convolution import check
from tests.kernels.cases import Case

generator = torch.Generator().manual_seed(int(sys.argv[2]))
def number(low, high): return int(torch.randint(low, high + 1, (), generator=generator))
def pair(low, high): return number(low, high), number(low, high)
done = 0
while done < 300:
    library.kernels().choose_instructions(("avx512", "avx2", "plain")[number(0, 2)])
    torch.set_num_threads(number(1, 3))
    sides = pair(1, 30), pair(1, 6), pair(1, 3), pair(0, 3), pair(0, 3), pair(1, 2)
    convolution = Convolution(pair(1, 9), *sides)
    if min(convolution.out) > 0:
        check(Case.draw(convolution, number(0, 40), number(0, 10) / 10))
        check(Case.draw(Convolution(pair(1, 99), (1, 1)), number(0, 300), number(0, 10) / 10))
        done += 1
print("checked")
"""

STEPS = """
import sys
from pathlib import Path
from flipout.kernels import library
library.FILE = Path(sys.argv[1])
from flipout.kernels import batch_norms, step_loops
step_loops.WORK_OF_A_THREAD = batch_norms.WORK_OF_A_THREAD = 1
from hypothesis import seed, settings
settings.register_profile("slow", deadline=None, database=None)
settings.load_profile("slow")
from tests.kernels import test_batch_norms, test_latent_loops, test_step_loops

for name in ("plain", "avx2", "avx512"):
    library.kernels().choose_instructions(name)
    for module in (test_batch_norms, test_latent_loops, test_step_loops):
        for test in vars(module).values():
            if hasattr(test, "hypothesis"):
                seed(int(sys.argv[2]))(test)()
print("checked")
"""


def test_without_a_compiler_the_reason_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "compiler" in str(build.build(tmp_path / "library.so"))
    monkeypatch.setenv("CC", "/nowhere/cc --fast")
    assert "/nowhere/cc" in str(build.build(tmp_path / "library.so"))
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_compiler_is_returned(tmp_path: Path) -> None:
    assert "unknown-option" in str(build.build(tmp_path / "library.so", ["--unknown-option"]))


@pytest.fixture
def _missing_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as it is installed without a compiler."""
    monkeypatch.setattr(library, "FILE", tmp_path / "missing.so")
    library.find_kernels.cache_clear()
    library._warn_once.cache_clear()
    yield
    library.find_kernels.cache_clear()
    library._warn_once.cache_clear()


@pytest.mark.usefixtures("_missing_kernels")
def test_missing_kernels_are_reported_once() -> None:
    with pytest.warns(library.MissingKernelsWarning, match="compiler"):
        assert not library.has_kernels()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not library.has_kernels()


@pytest.mark.usefixtures("_missing_kernels")
@pytest.mark.skipif(build.compiler() is None, reason="needs a compiler")
def test_kernels_of_another_version_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their structures have other sizes, so that calls of them would crash."""
    monkeypatch.setattr(library, "FILE", tmp_path / "older.so")
    sources = tmp_path / "c"
    shutil.copytree(build.SOURCES, sources)
    header = sources / "step.h"
    header.write_text(header.read_text().replace("int64_t each;", "int64_t each, more;"))
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.build(library.FILE) is None
    with pytest.warns(library.MissingKernelsWarning, match=r"flipout\.kernels\.build"):
        assert not library.has_kernels()


@pytest.mark.usefixtures("_missing_kernels")
def test_without_kernels_everything_is_computed_densely() -> None:
    with pytest.warns(library.MissingKernelsWarning):
        model, optimizer, _, kernels = pruned(True)
    assert type(model.first) is nn.Conv2d
    step(model, optimizer, 0)
    kernels.load(kernels.saved())
    kernels.remove()
    assert direct_layer(model.first) is None


def test_a_compiler_that_knows_only_plain_instructions_builds_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "X86", {"avx2": ("-munknown",)})
    assert build.build(tmp_path / "library.so") is None
    assert library.Library(tmp_path / "library.so").instructions == "plain"


@pytest.mark.slow
@pytest.mark.parametrize("program", [LAYERS, STEPS], ids=["layers", "steps"])
def test_the_kernels_stay_inside_of_their_memory(tmp_path: Path, program: str) -> None:
    """Random shapes under the address sanitizer, which ends the process at the first wrong access."""
    command = build.compiler()
    assert command is not None
    found = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("this compiler has no address sanitizer")
    assert build.build(tmp_path / "library.so", ["-fsanitize=address,undefined", "-g"]) is None
    settings = {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "library.so"), os.environ.get("FLIPOUT_ATTACK_SEED", "0")],
        capture_output=True,
        text=True,
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checked" in done.stdout

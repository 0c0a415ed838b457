"""The documentation: the site builds without a warning, and notebooks are those of their pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebooks import TUTORIALS, notebook

ROOT = Path(__file__).parent.parent


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_of_a_tutorial_is_up_to_date(page: Path) -> None:
    assert page.with_suffix(".ipynb").read_text() == notebook(page), "run `python -m tests.notebooks`"

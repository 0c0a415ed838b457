"""The examples run, and so does the code in the README and on the pages of the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_outputs import COMMAND, PAGES, ROOT, code, commands, differences, excerpt, outputs

EXPECTED = {
    "accelerate_prune.py": "370 of 7,400 weights kept",
    "aim_test.py": "over-shoots",
    "corrections.py": "divided by flips, as printed",
    "detector.py": "in a new process: ",
    "fsdp_prune.py": "identical to the last bit: True",
    "hoyer_square.py": "740 of 7,400 weights kept",
    "ladder.py": "int8",
    "lightning_prune.py": "identical to the last bit: True",
    "lora_prune.py": "740 of 7,400 weights kept",
    "own_criterion.py": "740 of 7,400 weights kept",
    "quickstart.py": "2,510 of 50,200",
    "rigl.py": "370 of 7,400 weights kept",
    "resume.py": "identical to the last bit: True",
    "snip.py": "370 of 7,400 weights kept",
    "transformers_prune.py": "identical to the last bit: True",
}
FRAMEWORKS = {
    "accelerate_prune.py": "accelerate",
    "fsdp_prune.py": "torch.distributed.fsdp",
    "lightning_prune.py": "lightning",
    "lora_prune.py": "peft",
    "transformers_prune.py": "transformers",
}
"""Examples that need a package, which may write to stderr. Importing one takes seconds: they are slow tests."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_example_with_a_framework(name: str) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    done = subprocess.run([sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name not in FRAMEWORKS)
)
def test_example(name: str) -> None:
    arguments = {
        "quickstart.py": ["--epochs", "4"],
        "corrections.py": ["--epochs", "2", "--seeds", "1"],
    }.get(name, [])
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert done.stderr == ""


WITH_CODE = [str(page.relative_to(ROOT)) for page in PAGES if code(page)]
FIRST = {
    "README.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/coming-from.md",
    "docs/how-to/own-method.md",
    "docs/how-to/own-form.md",
}


@pytest.mark.parametrize(
    "page", [page if page in FIRST else pytest.param(page, marks=pytest.mark.slow) for page in WITH_CODE]
)
def test_the_code_on_a_page_runs(page: str, tmp_path: Path) -> None:
    """All blocks of the page, one after the other. What the page says that they print is what they print."""
    for said, printed in outputs(ROOT / page, tmp_path):
        assert said is None or differences(said, printed) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES if COMMAND.search(page.read_text())])
def test_the_commands_on_a_page_print_what_it_says(page: str, tmp_path: Path) -> None:
    for found in commands(ROOT / page, tmp_path):
        assert excerpt(*found)[1] == []


def test_the_page_on_your_own_data_and_network_works(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "own-data-and-network.md"
    (module,) = code(page)
    (tmp_path / "stripes.py").write_text(module)
    (line,) = re.findall(r"^flipout (train --data stripes.*)$", page.read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "flipout_lab", *line.split(), "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test_accuracy"] > 0.9


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in (*PAGES, *ROOT.glob("C*.md"))])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = re.sub(r"in a new file, `[^`]*`", "", (ROOT / page).read_text())
    for name in re.findall(r"\b(?:tests|examples|benchmarks|src)/[\w/.-]+\.(?:py|json)\b", text):
        assert (ROOT / name).exists(), f"{page} names {name}"

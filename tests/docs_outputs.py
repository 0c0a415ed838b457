"""The code and the commands on the pages of the documentation, and what they print.

A block without a language that directly follows a block of Python is what that code prints. A line `$ flipout ...` is a
command, and the lines after it are from its output; a line `...` stands for lines that are left out.

`python -m tests.docs_outputs [page ...]` runs pages and writes today's outputs into them: those that have any, without
names.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PREAMBLE = """
import flipout
import torch
from torch import nn
x, y = torch.randn(64, 12), torch.randint(4, (64,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.functional.cross_entropy
epochs, steps = 3, 12
example_input = x[:1]
"""
MARK = "-- the end of a block --"
CODE = re.compile(r"^```python\n(.*?)^```$(?:\n+^```\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ flipout (.*)\n((?:(?!\$ |```).+\n)*)", re.MULTILINE)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
MEASURES_TIME = ("card",)
"""Commands that print times: their numbers are not compared."""


def code(page: Path) -> list[str]:
    """The blocks of Python of a page."""
    return [match[1] for match in CODE.finditer(page.read_text())]


def outputs(page: Path, folder: Path) -> list[tuple[str | None, str]]:
    """For each block of Python of a page: what the page says that it prints, if anything, and what it prints.

    All blocks run in one program, one after the other. A tutorial is complete, because it is also a notebook.
    """
    start = "" if page.parent.name == "tutorials" else PREAMBLE
    program = start + "".join(f"{block}\nprint({MARK!r})\n" for block in code(page))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ranks = alone if page.stem == "fsdp" else {}
    printed = _output([sys.executable, "-c", program], folder, ranks).split(f"{MARK}\n")
    said = [match[2] for match in CODE.finditer(page.read_text())]
    return list(zip(said, printed, strict=False))


def commands(page: Path, folder: Path) -> Iterator[tuple[str, str, str]]:
    """For each command of a page: the command, the lines that the page shows, and what it prints."""
    for match in COMMAND.finditer(page.read_text()):
        command = [sys.executable, "-m", "flipout_lab", *shlex.split(match[1])]
        yield match[1], match[2], _output(command, folder, {"COLUMNS": "106"})


def _output(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(line: str) -> str:
    """A line without its numbers and its layout. The lines of a table are drawn heavier in its header.

    The width of a table depends on rows that a page need not show, such as the layers that kernels make faster here.
    """
    line = line.replace("┃", "│")
    return re.sub(r"([-─━])\1+", r"\1\1", " ".join(NUMBER.sub("#", line).split()))


def numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


def agrees(said: str, printed: str, *, exact: bool = True) -> bool:
    """Whether two lines are the same, up to what rounding on another machine does to the numbers of a training."""
    if words(said) != words(printed):
        return False
    return not exact or _distance(said, printed) <= 1


def _distance(said: str, printed: str) -> float:
    """How far the numbers of two lines are apart, in units of what is accepted."""
    pairs = zip(numbers(said), numbers(printed), strict=True)
    return max((abs(a - b) / (5 + 0.2 * max(a, b)) for a, b in pairs), default=0)


def differences(said: str, printed: str) -> list[str]:
    """The lines of an output that differ from what a page says."""
    ours, theirs = said.splitlines(), printed.splitlines()
    if len(ours) != len(theirs):
        return [f"the page has {len(ours)} lines, and the code prints:\n{printed}"]
    return [f"{a!r} is now {b!r}" for a, b in zip(ours, theirs, strict=True) if not agrees(a, b)]


def excerpt(command: str, said: str, printed: str) -> tuple[str, list[str]]:
    """The lines that a page shows of the output of a command as they are today, and those that are not found there."""
    lines, lost, first = [], [], 0
    available = printed.splitlines()
    for line in said.splitlines():
        same = [i for i in range(first, len(available)) if words(available[i]) == words(line)]
        if line == "...":
            lines.append(line)
        elif not same:
            lines.append(line)
            lost.append(f"flipout {command} no longer prints {line!r}")
        else:
            nearest = min(same, key=lambda i: _distance(line, available[i]))
            if not agrees(line, available[nearest], exact=command.split()[0] not in MEASURES_TIME):
                lost.append(f"flipout {command} prints {available[nearest]!r} in place of {line!r}")
            lines.append(available[nearest].rstrip().replace("┃", "│"))
            first = nearest + 1
    return "".join(f"{line}\n" for line in lines), lost


def rewrite(page: Path) -> None:
    """Write today's outputs into a page."""
    with tempfile.TemporaryDirectory() as folder:
        printed = iter(outputs(page, Path(folder)))
        shown = {command: excerpt(command, said, now) for command, said, now in commands(page, Path(folder))}

    def with_output(match: re.Match[str]) -> str:
        said, now = next(printed)
        return match[0] if said is None else f"```python\n{match[1]}```\n\n```\n{now}```"

    text = CODE.sub(with_output, page.read_text())
    text = COMMAND.sub(lambda match: f"$ flipout {match[1]}\n{shown[match[1]][0]}", text)
    page.write_text(text)
    for _, lost in shown.values():
        for message in lost:
            print(message)


if __name__ == "__main__":
    chosen = [ROOT / name for name in sys.argv[1:]]
    for each in chosen or PAGES:
        found = each.read_text()
        if chosen or any(match[2] is not None for match in CODE.finditer(found)) or COMMAND.search(found):
            print(each.relative_to(ROOT))
            rewrite(each)

"""The tutorials as notebooks: `python -m tests.notebooks` makes them from the pages, with the outputs on the pages.

A block of Python is a cell. The block of output that follows it is what the cell prints. All other text is Markdown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.docs_outputs import CODE, ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SITE = "https://flipout.github.io/flipout"


def notebook(page: Path) -> str:
    """A page as a notebook, in version 4.5 of its format."""
    cells, text, end = list[dict[str, Any]](), page.read_text(), 0
    for match in CODE.finditer(text):
        cells += [_markdown(text[end : match.start()]), _code(match[1], match[2])]
        end = match.end()
    cells.append(_markdown(text[end:]))
    cells = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells) if "".join(cell["source"])]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    """A cell of text. Links to other pages lead to the site, and a notebook does not point to itself."""
    text = text.replace(" It is also a\n[notebook]", "\n[notebook]").replace(" It is also a [notebook]", " [notebook]")
    lines = []
    for line in text.strip().splitlines():
        before, _, after = line.partition("[notebook](")
        line = before.rstrip() + after.partition(").")[2]
        lines.append(line)
    text = "\n".join(lines).replace("](../", f"]({SITE}/").replace(".md)", "/)").replace(".md#", "/#")
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def _code(source: str, printed: str | None) -> dict[str, Any]:
    stream = {"name": "stdout", "output_type": "stream", "text": (printed or "").splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [stream] if printed else [],
        "source": source.strip().splitlines(keepends=True),
    }


if __name__ == "__main__":
    for tutorial in TUTORIALS:
        tutorial.with_suffix(".ipynb").write_text(notebook(tutorial))
        print(tutorial.with_suffix(".ipynb").relative_to(ROOT))

"""The tutorials as notebooks: `python -m tests.notebooks` makes them from the pages, with the outputs on the pages.

A block of Python is a cell. The block of output that follows it is what the cell prints. All other text is Markdown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.docs_outputs import CODE, ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SITE = "https://flipout.github.io/flipout"
TO_ITSELF = re.compile(r"\s*It is also a\s+\[notebook\]\([^)]*\)\.")
TO_PAGE = re.compile(r"\]\(\.\./([\w/-]+)\.md")


def notebook(page: Path) -> str:
    """A page as a notebook, in version 4.5 of the format."""
    cells, text, end = list[dict[str, Any]](), page.read_text(), 0
    for match in CODE.finditer(text):
        cells += [_markdown(text[end : match.start()]), _code(match[1], match[2] or "")]
        end = match.end()
    cells.append(_markdown(text[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells) if cell["source"]],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    """A cell of text. Its links lead to the site."""
    text = TO_PAGE.sub(rf"]({SITE}/\1.html", TO_ITSELF.sub("", text))
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def _code(source: str, printed: str) -> dict[str, Any]:
    stream = {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [stream] if printed else [],
        "source": source.strip().splitlines(keepends=True),
    }


if __name__ == "__main__":
    for tutorial in TUTORIALS:
        made = tutorial.with_suffix(".ipynb")
        made.write_text(notebook(tutorial))
        print(made.relative_to(ROOT))

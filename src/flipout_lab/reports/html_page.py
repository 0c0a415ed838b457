"""The page of a report: one HTML file without external resources."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def slug(title: str) -> str:
    """A title in lower case with a hyphen between words, for an address or a file name."""
    words = "".join(character if character.isalnum() else " " for character in title.lower()).split()
    return "-".join(words)


class UniqueNames:
    """Make names from titles, each name at most once.

    Different titles can have the same slug: "+noise" and "-noise" are both "noise". The second one gets a suffix.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reserve(self, *titles: str) -> str:
        """The slugs of these titles, joined by a hyphen, with a number at the end if that name is taken."""
        wanted = "-".join(filter(None, map(slug, titles))) or "unnamed"
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}-{number}"
        self._taken.add(name)
        return name


STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1320px; padding: 0 16px 64px; }
p { max-width: 60rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.3rem; border-top: 2px solid #222; padding-top: .8rem; margin-top: 3rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
nav a { display: inline-block; margin-right: 1rem; }
a { color: #0a5a8c; }
.note, .lead { color: #555; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; margin: .5rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, .text { text-align: left; }
.verdicts th, .verdicts .text { white-space: normal; }
.verdicts th[scope=row], .verdicts .text { min-width: 7rem; }
thead th { border-bottom: 1.5px solid #222; }
details { margin: 1rem 0; }
summary { cursor: pointer; }
@media print {
  body { max-width: none; font-size: 11px; }
  nav, .modebar, details:not([open]) { display: none; }
  h2 { break-before: page; } h3 { break-after: avoid; } .chart, tr { break-inside: avoid; }
  .wide { overflow: visible; } td, th { white-space: normal; }
}
"""


@dataclass
class Section:
    """A heading and the content below it. `anchor` is its address on the page."""

    title: str
    anchor: str
    parts: list[str] = field(default_factory=list)

    def add(self, title: str, *content: str) -> None:
        self.parts += [f"<h3>{html.escape(title)}</h3>", *content]


def chart_html(figure: Any, name: str) -> str:
    """A plotly figure as HTML."""
    options = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=options)
    return f"<div class=chart>{drawn}</div>"


def note(text: str) -> str:
    return f"<p class=note>{html.escape(text)}</p>"


def folded(title: str, content: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def render_page(title: str, introduction: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole page, including the code of plotly."""
    from plotly.offline import get_plotlyjs

    contents = "".join(f'<a href="#{section.anchor}">{html.escape(section.title)}</a>' for section in sections)
    body = "\n".join(
        f'<section id="{section.anchor}"><h2>{html.escape(section.title)}</h2>\n'
        + "\n".join(section.parts)
        + "</section>"
        for section in sections
    )
    lead = "".join(f"<p class=lead>{html.escape(line)}</p>" for line in introduction)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        '<link rel=icon href="data:,">\n'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>\n<script>{get_plotlyjs()}</script></head>\n"
        f"<body><h1>{html.escape(title)}</h1>{lead}<nav>{contents}</nav>\n{body}\n</body></html>\n"
    )

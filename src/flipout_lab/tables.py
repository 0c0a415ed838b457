"""The table of the lab: for the console, for a page, and as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable
from rich.text import Text

from .files import write_bytes


class Bold(str):
    """The text of a cell that stands out."""

    __slots__ = ()


def bold_if(text: object, condition: bool) -> str:
    return Bold(text) if condition else str(text)


@dataclass(frozen=True)
class Table:
    """A table with a title, a heading (which may be empty), rows, and notes below it."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    texts: Sequence[int] = (0,)
    """The columns that contain text and no numbers."""
    widest: int = 7
    """The most columns on the console; a wider table is transposed."""

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.heading) + " |"]
        lines.append("".join("|---" if column in self.texts else "|---:" for column in range(len(self.heading))) + "|")
        for row in self.rows:
            cells = (f"**{text}**" if isinstance(text, Bold) else text for text in row)
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
        return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in self.notes)

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heading, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        rows = [" & ".join(map(_latex, self.heading)) + r" \\", r"\midrule"]
        for row in self.rows:
            texts = (rf"\textbf{{{_latex(text)}}}" if isinstance(text, Bold) else _latex(text) for text in row)
            rows.append(" & ".join(texts) + r" \\")
        body = "\n    ".join(rows)
        columns = "".join("l" if column in self.texts else "r" for column in range(len(self.heading)))
        notes = " ".join(map(_latex, (self.title + ".", *self.notes)))
        return (
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{notes}}}\n  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {body}\n    \\bottomrule\n"
            "  \\end{tabular}\n\\end{table}\n"
        )

    def html(self, addresses: Sequence[str] = ()) -> str:
        """The table for a page. The first cell of a row is a link if the row has an address."""
        kinds = ["class=text" if column in self.texts else "" for column in range(len(self.heading))]
        head = "".join(
            f"<th scope=col {kind}>{html.escape(text)}</th>" for kind, text in zip(kinds, self.heading, strict=True)
        )
        body = ""
        for number, (first, *rest) in enumerate(self.rows):
            address = addresses[number] if addresses else ""
            name = f'<a href="{html.escape(address)}">{html.escape(first)}</a>' if address else html.escape(first)
            texts = (f"<b>{html.escape(text)}</b>" if isinstance(text, Bold) else html.escape(text) for text in rest)
            columns = zip(kinds[1:], map(html.escape, self.heading[1:]), texts, strict=True)
            cells = "".join(f'<td {kind} data-column="{column}">{text}</td>' for kind, column, text in columns)
            body += f"<tr><th scope=row>{name}</th>{cells}</tr>\n"
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        wrapped = " class=verdicts" if len(self.texts) > 1 else ""  # long texts wrap; numbers never do
        table = f"<table{wrapped}><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
        return f"<div class=wide>{table}</div>{notes}"

    def write(self, path: Path) -> list[Path]:
        """Write `PATH.md`, `PATH.csv` and `PATH.tex`. Return their paths."""
        written = []
        for suffix, text in ((".md", self.markdown()), (".csv", self.csv()), (".tex", self.latex())):
            written.append(path.with_name(path.name + suffix))
            write_bytes(written[-1], text.encode())
        return written

    def rich(self) -> RichTable:
        """The table for the console. Texts are not interpreted as markup."""
        title, caption = Text(self.title, "table.title"), Text("\n".join(self.notes), "table.caption")
        table = RichTable(title=title if title else None, caption=caption, show_header=bool(self.heading))
        rows, texts = [self.heading or [""] * len(self.rows[0]), *self.rows], self.texts
        if len(self.heading) > self.widest:
            rows, texts = list(zip(*rows, strict=True)), (0,)
        for number, text in enumerate(rows[0]):
            justify, overflow = ("left", "fold") if number in texts else ("right", "ellipsis")
            table.add_column(Text(text), justify=justify, overflow=overflow)  # type: ignore[arg-type]
        for row in rows[1:]:
            table.add_row(*(Text(text, style="bold" if isinstance(text, Bold) else "") for text in row))
        return table


_LATEX = {
    **{character: f"\\{character}" for character in "%&_#${}"},
    **{"^": r"\^{}", "~": r"\~{}", "\\": r"\textbackslash{}"},
    **{"±": r"$\pm$", "≈": r"$\approx$", "†": r"$^\dagger$", "λ": r"$\lambda$"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)

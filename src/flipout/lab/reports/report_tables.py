"""Tables, and the forms they are written in."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable
from rich.text import Text

from ..files import write_bytes
from .labels import labels, percent
from .records import Record
from .seed_statistics import Cell, best, by_option, cells, dense, shot_shares, sparsities

WIDEST = 7


@dataclass(frozen=True)
class Entry:
    """What stands in a cell of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A title, a heading, rows, and what must be said below."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.heading) + " |", "|---" + "|---:" * (len(self.heading) - 1) + "|"]
        for row in self.rows:
            cells = (f"**{entry.text}**" if entry.bold else entry.text for entry in row)
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
        return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in self.notes)

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.heading)
        writer.writerows([entry.text for entry in row] for row in self.rows)
        return out.getvalue()

    def latex(self) -> str:
        rows = [" & ".join(map(_latex, self.heading)) + r" \\", r"\midrule"]
        for row in self.rows:
            texts = (rf"\textbf{{{_latex(entry.text)}}}" if entry.bold else _latex(entry.text) for entry in row)
            rows.append(" & ".join(texts) + r" \\")
        body = "\n    ".join(rows)
        columns = "l" + "r" * (len(self.heading) - 1)
        notes = " ".join(map(_latex, (self.title + ".", *self.notes)))
        return (
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{notes}}}\n  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {body}\n    \\bottomrule\n"
            "  \\end{tabular}\n\\end{table}\n"
        )

    def html(self) -> str:
        head = "".join(f"<th scope=col>{html.escape(text)}</th>" for text in self.heading)
        body = ""
        for first, *rest in self.rows:
            texts = (f"<b>{html.escape(e.text)}</b>" if e.bold else html.escape(e.text) for e in rest)
            body += f"<tr><th scope=row>{html.escape(first.text)}</th>{''.join(f'<td>{t}</td>' for t in texts)}</tr>\n"
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
        return f"<div class=wide>{table}</div>{notes}"

    def write(self, path: Path) -> list[Path]:
        """In three forms, `PATH.md`, `PATH.csv` and `PATH.tex`."""
        written = []
        for suffix, text in ((".md", self.markdown()), (".csv", self.csv()), (".tex", self.latex())):
            written.append(path.with_name(path.name + suffix))
            write_bytes(written[-1], text.encode())
        return written

    def rich(self) -> RichTable:
        table = RichTable(title=self.title, caption="\n".join(self.notes))
        rows: Sequence[Sequence[Entry]] = [tuple(map(Entry, self.heading)), *self.rows]
        if len(self.heading) > WIDEST:
            rows = list(zip(*rows, strict=True))  # on its side, for it would not fit on a terminal
        for number, entry in enumerate(rows[0]):
            table.add_column(entry.text, justify="right" if number else "left")
        for row in rows[1:]:
            table.add_row(*(Text(entry.text, style="bold" if entry.bold else "") for entry in row))
        return table


_LATEX = {
    **{character: f"\\{character}" for character in "%&_#${}"},
    **{"^": r"\^{}", "~": r"\~{}", "\\": r"\textbackslash{}"},
    **{"±": r"$\pm$", "†": r"$^\dagger$", "λ": r"$\lambda$"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


BOLD = "Bold: the best, and what is not told apart from it, by less than the spread of the two or with one seed only."
INTERPOLATED = "†: interpolated on log density between the best runs, for the sparsity of this method is an outcome."


def accuracy_table(title: str, runs: Sequence[Record]) -> Table:
    """Methods against sparsities, as the paper prints it: mean and standard deviation over seeds."""
    found = cells(runs)
    columns = sparsities(found)
    winners = {s: best({label: of[s] for label, of in found.items() if s in of}) for s in columns}
    rows = []
    for label, of in found.items():
        texts = [Entry(str(of.get(s, Cell(())))) for s in columns]
        rows.append((Entry(label), *(Entry(e.text, label in winners[s]) for e, s in zip(texts, columns, strict=True))))
    if (reference := dense(runs)) is not None:
        rows.append((Entry("Dense (nothing pruned)"), *[Entry(str(reference))] * len(columns)))
    notes = [BOLD] if len(found) > 1 else []
    if any(cell.interpolated for of in found.values() for cell in of.values()):
        notes.append(INTERPOLATED)
    return Table(title, ("method", *map(percent, columns)), tuple(rows), tuple(notes))


def dead_table(title: str, runs: Sequence[Record]) -> Table | None:
    """In how many runs layers died, and which; None if none did."""
    found = cells(runs)
    columns = sparsities(found)
    rows = []
    for label, of in found.items():
        if any(cell.runs_with_dead for cell in of.values()):
            rows.append((Entry(label), *(Entry(_dead(of.get(s, Cell(())))) for s in columns)))
    named = labels(runs)
    outcomes: dict[str, list[Record]] = {}
    for run in runs:
        if run.settings.sparsity is None and run.result is not None and run.result["dead_layers"]:
            outcomes.setdefault(named[run.name], []).append(run)
    for label, dead in outcomes.items():
        names = sorted({name for run in dead if run.result is not None for name in run.result["dead_layers"]})
        told = Entry(f"{len(dead)} runs: {', '.join(names[:3])}")
        rows.append((Entry(f"{label}, whatever it came to"), told, *[Entry("")] * (len(columns) - 1)))
    if not rows:
        return None
    note = "In how many runs a layer lost its last weight, and which. What is not named lost none in a finished run."
    return Table(title, ("method", *map(percent, columns)), tuple(rows), (note,))


def shots_table(title: str, runs: Sequence[Record]) -> Table | None:
    """Which share of the shots at zero went over it, by the aim test; None if no run counted them."""
    counted = shot_shares(runs)
    if not counted:
        return None
    columns = sparsities(counted)
    rows = [(Entry(label), *(Entry(str(of.get(s, Cell(())))) for s in columns)) for label, of in counted.items()]
    note = "Over-shoots in percent of all shots at zero, over all steps and weights; the rest are under-shoots."
    return Table(title, ("method", *map(percent, columns)), tuple(rows), (note,))


def best_value_table(title: str, networks: Mapping[str, Sequence[Record]]) -> Table:
    """The paper's Table 2: the best scale of the noise, and what it gains over 1."""
    scans = {network: by_option(runs, "noise") for network, runs in networks.items()}
    columns = sorted({sparsity for found in scans.values() for _, sparsity in found})
    heading, rows = ["network"], []
    for sparsity in columns:
        heading += [f"{percent(sparsity)}: best λ", f"{percent(sparsity)}: λ = 1"]
    for network, found in scans.items():
        row = [Entry(network)]
        for sparsity in columns:
            column = {value: cell for (value, s), cell in found.items() if s == sparsity and cell.values}
            if not column:
                row += [Entry("missing"), Entry("missing")]
                continue
            top = max(column, key=lambda value: column[value].mean)
            ours = column.get(1.0, Cell(()))
            gain = f", {column[top].mean - ours.mean:+.2f}" if ours.values else ""
            row += [Entry(f"{column[top]} (λ = {top:g}{gain})"), Entry(str(ours))]
        rows.append(tuple(row))
    return Table(title, tuple(heading), tuple(rows))


def power_table(title: str, networks: Mapping[str, Sequence[Record]]) -> Table:
    """The paper's Table 3: powers of the magnitude at two sparsities."""
    scans, rows = {network: by_option(runs, "p") for network, runs in networks.items()}, []
    columns = sorted({key for found in scans.values() for key in found}, key=lambda key: (key[1], key[0]))
    for network, found in scans.items():
        row = [Entry(network)]
        for value, sparsity in columns:
            column = {f"{v:g}": cell for (v, s), cell in found.items() if s == sparsity}
            row.append(Entry(str(found.get((value, sparsity), Cell(()))), f"{value:g}" in best(column)))
        rows.append(tuple(row))
    heading = ("network", *(f"{percent(s)}: p = {value:g}" for value, s in columns))
    return Table(title, heading, tuple(rows), (BOLD,))


def _dead(cell: Cell) -> str:
    if not cell.runs_with_dead:
        return "" if cell.values else "missing"
    names = sorted(set(cell.dead))
    told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{cell.runs_with_dead} of {cell.seeds}: {told}"

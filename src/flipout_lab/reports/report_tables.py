"""The tables of a report, and their output as Markdown, CSV, LaTeX, HTML and on the console."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.table import Table as RichTable
from rich.text import Text

from ..files import write_bytes
from .labels import label_runs, percent
from .records import Record
from .seed_statistics import (
    Cell,
    PairedDifference,
    best,
    by_option,
    cell_of,
    cells,
    dense_cell,
    level_with_best,
    shot_shares,
    sparsities,
)

WIDEST = 7  # columns on the console; wider tables are transposed


@dataclass(frozen=True)
class TableEntry:
    """The text of one cell."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table with a title, a heading, rows, and notes below it."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]
    notes: tuple[str, ...] = ()
    texts: tuple[int, ...] = (0,)  # the columns that contain text and no numbers

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.heading) + " |"]
        lines.append("".join("|---" if column in self.texts else "|---:" for column in range(len(self.heading))) + "|")
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
        columns = "".join("l" if column in self.texts else "r" for column in range(len(self.heading)))
        notes = " ".join(map(_latex, (self.title + ".", *self.notes)))
        return (
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{notes}}}\n  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {body}\n    \\bottomrule\n"
            "  \\end{tabular}\n\\end{table}\n"
        )

    def html(self) -> str:
        kinds = ["class=text" if column in self.texts else "" for column in range(len(self.heading))]
        head = "".join(
            f"<th scope=col {kind}>{html.escape(text)}</th>" for kind, text in zip(kinds, self.heading, strict=True)
        )
        body = ""
        for first, *rest in self.rows:
            texts = (f"<b>{html.escape(e.text)}</b>" if e.bold else html.escape(e.text) for e in rest)
            cells = "".join(f"<td {kind}>{text}</td>" for kind, text in zip(kinds[1:], texts, strict=True))
            body += f"<tr><th scope=row>{html.escape(first.text)}</th>{cells}</tr>\n"
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
        table = RichTable(title=Text(self.title, "table.title"), caption=Text("\n".join(self.notes), "table.caption"))
        rows: Sequence[Sequence[TableEntry]] = [tuple(map(TableEntry, self.heading)), *self.rows]
        if len(self.heading) > WIDEST:
            rows = list(zip(*rows, strict=True))
        for number, entry in enumerate(rows[0]):
            left = number in self.texts if len(self.heading) <= WIDEST else number == 0
            table.add_column(Text(entry.text), justify="left" if left else "right")
        for row in rows[1:]:
            table.add_row(*(Text(entry.text, style="bold" if entry.bold else "") for entry in row))
        return table


_LATEX = {
    **{character: f"\\{character}" for character in "%&_#${}"},
    **{"^": r"\^{}", "~": r"\~{}", "\\": r"\textbackslash{}"},
    **{"±": r"$\pm$", "≈": r"$\approx$", "†": r"$^\dagger$", "λ": r"$\lambda$"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


BOLD = (
    "Bold: the highest mean. ≈: not shown to be lower than that, because the 95 % interval of the difference, paired "
    "by seed, contains 0, or there are too few seeds."
)
INTERPOLATED = (
    "†: the sparsity of this method is an outcome; its accuracy is interpolated on log density between its best runs."
)


def accuracy_table(title: str, runs: Sequence[Record]) -> ReportTable:
    """Methods by sparsity, as in the paper: mean and standard deviation over seeds."""
    cells_by_label = cells(runs)
    columns = sparsities(cells_by_label)
    compared = [_compared({label: row[s] for label, row in cells_by_label.items() if s in row}) for s in columns]
    missing = TableEntry(str(Cell(())))
    rows = [(TableEntry(label), *(column.get(label, missing) for column in compared)) for label in cells_by_label]
    if (reference := dense_cell(runs)) is not None:
        rows.append((TableEntry("Dense (not pruned)"), *[TableEntry(str(reference))] * len(columns)))
    notes = [BOLD] if len(cells_by_label) > 1 else []
    if any(cell.interpolated for row in cells_by_label.values() for cell in row.values()):
        notes.append(INTERPOLATED)
    return ReportTable(title, ("method", *map(percent, columns)), tuple(rows), tuple(notes))


def _compared(column: Mapping[str, Cell]) -> dict[str, TableEntry]:
    """The entries of a column: the best is bold, and those that it is not shown to beat are marked."""
    top, level = best(column), level_with_best(column)
    return {
        label: TableEntry(f"{cell}{' ≈' if label in level else ''}", bold=label == top)
        for label, cell in column.items()
    }


def dead_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """In how many runs a layer died, and which layers; None if no layer died."""
    cells_by_label = cells(runs)
    columns = sparsities(cells_by_label)
    rows = []
    for label, row in cells_by_label.items():
        if any(cell.runs_with_dead_layers for cell in row.values()):
            rows.append((TableEntry(label), *(TableEntry(_dead(row.get(s, Cell(())))) for s in columns)))
    labels = label_runs(runs)
    outcomes: dict[str, list[Record]] = {}
    for run in runs:
        if run.settings.sparsity is None and run.result is not None and run.result["dead_layers"]:
            outcomes.setdefault(labels[run.name], []).append(run)
    for label, dead in outcomes.items():
        names = sorted({name for run in dead if run.result is not None for name in run.result["dead_layers"]})
        entry = TableEntry(f"{len(dead)} runs: {', '.join(names[:3])}")
        rows.append((TableEntry(f"{label}, at any sparsity"), entry, *[TableEntry("")] * (len(columns) - 1)))
    if not rows:
        return None
    heading = ("method", *(map(percent, columns) if columns else ("runs with a dead layer",)))
    note = (
        "The number of runs in which a layer lost its last weight, and the layers. Methods that are not listed have no "
        "dead layer in any finished run."
    )
    return ReportTable(title, heading, tuple(rows), (note,))


def shots_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Over-shoots in percent of all shots at zero; None if no run used the aim test."""
    shares = shot_shares(runs)
    if not shares:
        return None
    columns = sparsities(shares)
    rows = [
        (TableEntry(label), *(TableEntry(str(row.get(s, Cell(())))) for s in columns)) for label, row in shares.items()
    ]
    note = "Over-shoots in percent of all shots at zero, over all steps and weights. All other shots are under-shoots."
    return ReportTable(title, ("method", *map(percent, columns)), tuple(rows), (note,))


def best_value_table(title: str, networks: Mapping[str, Sequence[Record]]) -> ReportTable:
    """The paper's Table 2: the best scale of the noise, and its gain over a scale of 1."""
    scans = {network: by_option(runs, "noise") for network, runs in networks.items()}
    columns = sorted({sparsity for scan in scans.values() for _, sparsity in scan})
    heading, rows = ["network"], []
    for sparsity in columns:
        heading += [f"{percent(sparsity)}: best λ", f"{percent(sparsity)}: λ = 1"]
    for network, scan in scans.items():
        row = [TableEntry(network)]
        for sparsity in columns:
            column = {value: cell for (value, s), cell in scan.items() if s == sparsity and cell.values}
            if not column:
                row += [TableEntry("missing"), TableEntry("missing")]
                continue
            top = max(column, key=lambda value: column[value].mean)
            ours = column.get(1.0, Cell(()))
            gain = f", {column[top].mean - ours.mean:+.2f}" if ours.values else ""
            row += [TableEntry(f"{column[top]} (λ = {top:g}{gain})"), TableEntry(str(ours))]
        rows.append(tuple(row))
    return ReportTable(title, tuple(heading), tuple(rows))


def power_table(title: str, networks: Mapping[str, Sequence[Record]]) -> ReportTable:
    """The paper's Table 3: powers of the magnitude at two sparsities."""
    scans, rows = {network: by_option(runs, "p") for network, runs in networks.items()}, []
    columns = sorted({key for scan in scans.values() for key in scan}, key=lambda key: (key[1], key[0]))
    for network, scan in scans.items():
        row = [TableEntry(network)]
        for value, sparsity in columns:
            column = _compared({f"{v:g}": cell for (v, s), cell in scan.items() if s == sparsity})
            row.append(column.get(f"{value:g}", TableEntry(str(Cell(())))))
        rows.append(tuple(row))
    heading = ("network", *(f"{percent(s)}: p = {value:g}" for value, s in columns))
    return ReportTable(title, heading, tuple(rows), (BOLD,))


def _dead(cell: Cell) -> str:
    if not cell.runs_with_dead_layers:
        return "" if cell.values else "missing"
    names = sorted(set(cell.dead_layers))
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{cell.runs_with_dead_layers} of {cell.seeds}: {listed}"


PAIRED_NOTE = (
    "Accuracy minus that of global magnitude with the same seed, schedule and training, in points: the mean over seeds "
    "and its 95 % confidence interval (Student's t). Bold: the interval does not contain 0. A method without a "
    "schedule (SNIP) is compared with magnitude under our schedule if that was run, or else under the paper's."
)


def paired_differences(runs: Sequence[Record]) -> dict[str, dict[float, PairedDifference]]:
    """Every method against global magnitude for good, by label and sparsity, over the seeds that both have."""
    labels, groups = label_runs(runs), dict[tuple[str, float], list[Record]]()
    for run in runs:
        if run.settings.sparsity is not None and run.settings.method != "dense" and not is_reference(run):
            groups.setdefault((labels[run.name], run.settings.sparsity), []).append(run)
    found: dict[str, dict[float, PairedDifference]] = {}
    for (label, sparsity), group in groups.items():
        references = [run for run in runs if is_reference(run) and run.settings.sparsity == sparsity]
        difference = cell_of(group).minus(_reference(group[0], references))
        if difference.values:
            found.setdefault(label, {})[sparsity] = difference
    return found


def paired_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Methods by sparsity: the difference to global magnitude. None if nothing can be compared with it."""
    differences = paired_differences(runs)
    columns = sorted({sparsity for row in differences.values() for sparsity in row})
    if not columns:
        return None
    rows = [
        (
            TableEntry(label),
            *(TableEntry(str(row[s]), row[s].is_shown) if s in row else TableEntry("") for s in columns),
        )
        for label, row in differences.items()
    ]
    return ReportTable(title, ("minus global magnitude", *map(percent, columns)), tuple(rows), (PAIRED_NOTE,))


def is_reference(run: Record) -> bool:
    """Whether a run is global magnitude as it is: for good, without noise, under any schedule."""
    return run.settings.method == "magnitude" and run.settings.given_options.keys() <= {"schedule"}


def _reference(run: Record, references: Sequence[Record]) -> Cell:
    """Global magnitude under the schedule of a run. For a method without a schedule: under ours, or the paper's."""
    schedule = run.settings.option("schedule")
    for kind in ("default", "paper") if schedule is None else (schedule,):
        cell = cell_of([each for each in references if each.settings.option("schedule") == kind])
        if cell.values:
            return cell
    return Cell(())


LEVELS = tuple(2.0**-i for i in range(1, 11))
"""The shares of the dense network's multiply-adds that are compared: a half, a quarter, an eighth, ..."""

CLOSE = 1.02
"""Points within this factor count as equal."""

NOTE = (
    "Accuracies in percent at a share of the dense network's multiply-adds. Multiply-adds with a zero weight do not "
    "count, wherever the zero is. Interpolated on log multiply-adds between the sparsities of a method; empty outside "
    "of them."
)


def multiply_add_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Methods by their share of multiply-adds; None unless the runs differ in granularity."""
    if len({run.settings.option("granularity") for run in runs if run.settings.method != "dense"}) < 2:
        return None
    curves = _curves(runs)
    columns = [level for level in LEVELS if any(accuracy_at(curve, level) is not None for curve in curves.values())]
    if not columns:
        return None
    rows = [
        (TableEntry(label), *(TableEntry(_text(accuracy_at(curve, level))) for level in columns))
        for label, curve in curves.items()
    ]
    return ReportTable(title, ("method", *(f"{level:.3%}" for level in columns)), tuple(rows), (NOTE,))


def accuracy_at(curve: Mapping[float, float], share: float) -> float | None:
    """The accuracy at a share of the multiply-adds, linear in its logarithm between two points; None outside.

    A point that is as good as there counts itself: whole units rarely leave exactly a half.
    """
    nearest = min(curve, key=lambda point: abs(math.log(point / share)))
    if abs(math.log(nearest / share)) <= math.log(CLOSE):
        return curve[nearest]
    below = max((point for point in curve if point <= share), default=None)
    above = min((point for point in curve if point >= share), default=None)
    if below is None or above is None:
        return None
    place = math.log(share / below) / math.log(above / below)
    return curve[below] + place * (curve[above] - curve[below])


def _curves(runs: Sequence[Record]) -> dict[str, dict[float, float]]:
    """For each method, the mean accuracy in percent by the mean share of multiply-adds, one point for a sparsity."""
    labels = label_runs(runs)
    points: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for run in runs:
        counted = None if run.result is None else run.result.get("multiply_adds")
        if counted and run.accuracy is not None and run.settings.sparsity and run.settings.method != "dense":
            share = counted["nonzero"] / counted["dense"]
            own = points.setdefault(labels[run.name], {}).setdefault(run.settings.sparsity, [])
            own.append((share, 100 * run.accuracy))
    return {
        label: {fmean(s for s, _ in each): fmean(a for _, a in each) for each in own.values()}
        for label, own in points.items()
    }


def _text(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"

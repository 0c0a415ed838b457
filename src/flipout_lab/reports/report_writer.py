"""Write a report: the page, its figures for print, its tables, and the results as data, in one folder."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..files import write_bytes
from ..runs.run_folder import CONFIG
from ..tables import Table
from . import charts
from .channels import PART as CHANNELS
from .channels import channels_table, networks_in_channels
from .charts import Chart, Lines
from .equal_time import PART as EQUAL_TIME
from .equal_time import equal_time_table, networks_at_equal_time, pruned_shares, time_chart
from .labels import PART_TITLES, by_network, counted, dense_references, label_runs, percent, scanned_option
from .lead import choice_table, lead_figure
from .matplotlib_figures import draw_figure
from .plotly_charts import draw_chart
from .records import Record, Records, results_json, versions_of
from .report_tables import accuracy_table, dead_table, multiply_add_table, paired_table, shots_table
from .seed_statistics import seeds_line


class UniqueNames:
    """Names for files and addresses, made from titles, each at most once: "+noise" and "-noise" differ in a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reserve(self, *titles: str) -> str:
        """The words of these titles in lower case, joined by hyphens, with a number at the end if that is taken."""
        wanted = "-".join(re.findall(r"[^\W_]+", " ".join(titles).lower())) or "unnamed"
        numbered = (f"{wanted}-{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([wanted], numbered) if name not in self._taken)
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
code { background: #f3f3f3; padding: .1rem .3rem; overflow-wrap: anywhere; }
li { margin: .4rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; margin: .5rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, .text { text-align: left; }
.verdicts th, .verdicts .text { white-space: normal; }
.verdicts th[scope=row], .verdicts .text { min-width: 7rem; }
thead th { border-bottom: 1.5px solid #222; }
details { margin: 1rem 0; }
summary { cursor: pointer; }
@media (max-width: 700px) { /* a row becomes a block: nothing is cut off */
  table, tbody, tr, th, td { display: block; }
  thead { display: none; }
  tr { border-bottom: 1.5px solid #222; padding: .3rem 0; }
  th, td, .verdicts .text { border: 0; padding: .1rem 0; white-space: normal; overflow-wrap: anywhere; }
  td, .text { display: flex; justify-content: space-between; gap: 1rem; text-align: right; }
  td:empty { display: none; }
  td::before { content: attr(data-column); color: #555; text-align: left; }
}
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


OPTION_NAMES = {"noise": "scale of the noise (λ)", "p": "power of the magnitude (p)", "lambda": "λ"}
FURTHER_TABLES: Mapping[str, Callable[[str, Sequence[Record]], Table | None]] = {
    "Minus global magnitude": paired_table,
    "At equal multiply-adds": multiply_add_table,
    "Shots at zero": shots_table,
    "Dead layers": dead_table,
}
"""The tables below the accuracies of a part, where they have something to say."""


@dataclass
class Report:
    """A report that is being written: its figures and tables, under names that are unique."""

    folder: Path
    names: UniqueNames = field(default_factory=UniqueNames)
    drawn: list[Chart] = field(default_factory=list)

    def table(self, name: str, table: Table) -> str:
        table.write(self.folder / "tables" / name)
        return table.html()

    def figure(self, name: str, title: str, choices: Mapping[str, Chart]) -> str:
        """Draw the last of several charts for print. Return all of them for the page; nothing if that was drawn."""
        *_, chart = choices.values()
        if chart in self.drawn:
            return ""  # it is at the beginning of the page
        self.drawn.append(chart)
        draw_figure(self.folder / "figures" / name, title, chart)
        return chart_html(draw_chart(choices), name)


@dataclass(frozen=True)
class LeadChart:
    """A figure for the beginning of a page, with a remark below it."""

    title: str
    chart: Lines
    remark: str


def write_report(
    records: Records,
    folder: Path,
    *,
    runs_folder: str = "..",
    claims: Table | None = None,
    charts_first: Sequence[LeadChart] = (),
    next_steps: Mapping[str, str] | None = None,
) -> Path:
    """Write the whole report to a folder. Return the path of the page.

    Args:
        records: the runs.
        folder: where the report goes.
        runs_folder: where the links to the runs lead.
        claims: a table of what was claimed and what holds, for the beginning of the page.
        charts_first: further figures for the beginning of the page.
        next_steps: commands to try next, each with what it does, for the end of the page.
    """
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    report = Report(folder)
    sections = _lead_sections(report, records.runs, claims, charts_first)
    sections += [_time_section(report, network, runs) for network, runs in networks_at_equal_time(records.runs).items()]
    sections += [_channels_section(report, title, runs) for title, runs in networks_in_channels(records.runs).items()]
    sections += [_network_section(report, title, runs) for title, runs in by_network(records.runs).items()]
    sections.append(_all_runs_section(report, records.runs, runs_folder))
    if next_steps:
        listed = (
            f"<li><code>{html.escape(each)}</code><br>{html.escape(next_steps[each])}</li>" for each in next_steps
        )
        title = "What to try next"
        sections.append(Section(title, report.names.reserve(title), ["<ul>", *listed, "</ul>"]))
    write_bytes(folder / "results.json", results_json(records).encode())
    path = folder / "index.html"
    write_bytes(path, render_page(records.title, introduction(records.runs), sections).encode())
    return path


def introduction(runs: Sequence[Record]) -> list[str]:
    """The number of runs, the kind of accuracy, and the versions of the software."""
    finished = sum(run.result is not None for run in runs)
    failed = sum(bool(run.failure) for run in runs)
    missing = len(runs) - finished - failed
    problems = "".join(f", {number} {what}" for number, what in ((failed, "failed"), (missing, "missing")) if number)
    return [
        f"{finished} of {counted(len(runs), 'run')} finished{problems}. Accuracies are those of the last epoch, never "
        "of the best; ± is the sample standard deviation over seeds.",
        versions_of(runs),
    ]


WALL_CLOCK = (
    "Wall clock of the runs as they were: side by side with others on the same machine. In a small network the work "
    "around each step takes longer than the zeros save."
)


def _lead_sections(
    report: Report, runs: Sequence[Record], claims: Table | None, further: Sequence[LeadChart]
) -> list[Section]:
    """What a reader wants first: accuracy and time against sparsity, which method to use, and what holds.

    Empty if nothing is finished.
    """
    lead = lead_figure(runs) or lead_figure(runs, convolutional=False)
    if lead is None:
        return []
    section = Section("In short", report.names.reserve("In short"))
    setting = f"{lead.network}, {seeds_line(lead.runs)}."
    for each in (
        LeadChart("Accuracy against sparsity", charts.accuracy_chart(lead.runs), setting),
        *further,
        LeadChart("Seconds of training against sparsity", charts.training_chart(lead.runs), f"{setting} {WALL_CLOCK}"),
    ):
        name = report.names.reserve(section.anchor, each.title.partition(" against")[0])
        section.add(
            each.title, report.figure(name, f"{each.title}: {lead.network}", {"": each.chart}), note(each.remark)
        )
    for table in (choice_table("Which method at which sparsity", runs), claims):
        if table is not None:
            section.add(table.title, report.table(report.names.reserve(table.title), table))
    return [section]


def _time_section(report: Report, network: str, runs: Sequence[Record]) -> Section:
    """Accuracy against hours, from runs that differ in their epochs."""
    title = f"{PART_TITLES[EQUAL_TIME]}: {network}"
    section = Section(title, report.names.reserve(title))
    drawn = {percent(sparsity): time_chart(runs, sparsity) for sparsity in pruned_shares(runs)}
    if drawn:
        section.add(
            "Accuracy against hours", report.figure(report.names.reserve(section.anchor, "hours"), title, drawn)
        )
    if (table := equal_time_table(title, runs)) is not None:
        section.add(table.title, report.table(report.names.reserve(table.title), table))
    return section


def _channels_section(report: Report, network: str, runs: Sequence[Record]) -> Section:
    """Whole channels beside dense networks of the same size."""
    table = channels_table(f"{PART_TITLES[CHANNELS]}: {network}", runs)
    section = Section(table.title, report.names.reserve(table.title))
    section.parts.append(report.table(report.names.reserve(section.anchor, "table"), table))
    return section


def _network_section(report: Report, title: str, runs: Sequence[Record]) -> Section:
    section = Section(title, report.names.reserve(title))
    for part in dict.fromkeys(part for run in runs for part in run.parts):
        in_part = [run for run in runs if part in run.parts]
        # Every part of a network shows its dense reference.
        shown = [*in_part, *dense_references(runs, in_part)]
        _add_part(report, section, report.names.reserve(section.anchor, part), PART_TITLES.get(part, part), shown)
    _add_training_details(report, section, runs)
    return section


def _add_part(report: Report, section: Section, name: str, title: str, runs: Sequence[Record]) -> None:
    table = accuracy_table(f"{section.title}: {title}", runs)
    content = []
    if any(run.accuracy is not None for run in runs if run.is_pruned):
        chart = charts.accuracy_chart(runs)
        if (option := scanned_option(runs)) is not None:
            chart = charts.scan_chart(runs, option, OPTION_NAMES.get(option, option.replace("_", " ")))
        content.append(report.figure(name, table.title, {"": chart}))
    content += [report.table(name, table), note(f"{seeds_line(runs)}, {_describe_epochs(runs)}.")]
    for heading, make in FURTHER_TABLES.items():
        if (further := make(f"{section.title}: {heading.lower()}", runs)) is not None:
            content += [f"<h4>{heading}</h4>", report.table(report.names.reserve(name, heading), further)]
    section.add(title, *content)


def _describe_epochs(runs: Sequence[Record]) -> str:
    epochs = sorted({run.settings.total_epochs for run in runs})
    schedules = sorted({str(kind) for run in runs if (kind := run.settings.option("schedule")) is not None})
    length = f"{epochs[0]} to {epochs[-1]} epochs (fine-tuning included)"
    if len(epochs) == 1:
        length = counted(epochs[0], "epoch")
    return f"{length}, schedule: {' and '.join(schedules)}" if schedules else length


def _add_training_details(report: Report, section: Section, runs: Sequence[Record]) -> None:
    """Add the figures about epochs, layers and flips, of the runs that have their own folders."""
    runs = [run for run in runs if run.metrics]
    requested = sorted({run.settings.sparsity for run in runs if run.settings.sparsity and run.result})

    def add(title: str, name: str, choices: Mapping[str, Chart | None], remark: str = "Mean over seeds.") -> None:
        found = {choice: chart for choice, chart in choices.items() if chart is not None}
        if found:
            name = report.names.reserve(section.anchor, name)
            drawn = report.figure(name, f"{section.title}, {list(found)[-1]}", found)
            section.add(title, drawn, note(remark))

    def by_sparsity(make: Callable[[Sequence[Record], float], Chart]) -> dict[str, Chart | None]:
        made = {percent(sparsity): make(runs, sparsity) for sparsity in requested}
        return {name: chart for name, chart in made.items() if not isinstance(chart, Lines) or chart.curves}

    add("Learning curves", "learning", by_sparsity(charts.learning_chart))
    falls = "Mean over seeds. They fall where the network is shrunk as it is pruned; --no-shrink switches that off."
    add("Seconds per epoch", "seconds", by_sparsity(charts.seconds_chart), falls)
    kept = "Mean over seeds, in percent of the weights of the layer. Red: the layer is dead."
    add("Weights kept in each layer", "layers", by_sparsity(charts.layer_shares), kept)
    shown = _one_run_per_label(runs) if requested else {}
    flips = {label: charts.flip_histogram(run) for label, run in shown.items()}
    add("Sign flips of kept and pruned weights", "flips", flips, "One seed each.")
    histories = {label: charts.pruning_history(run) for label, run in shown.items()}
    add("When each layer was pruned", "pruning history", histories, "One seed each.")


def _one_run_per_label(runs: Sequence[Record]) -> dict[str, Record]:
    """A run for each method and sparsity. The first method comes last, because the last choice of a figure is shown."""
    labels, chosen = label_runs(runs), dict[str, Record]()
    methods = list(dict.fromkeys(labels[run.name] for run in runs))
    for run in sorted(runs, key=lambda run: -methods.index(labels[run.name])):
        if run.result is not None and run.settings.sparsity and run.is_pruned:
            chosen.setdefault(f"{labels[run.name]}, {percent(run.settings.sparsity)}", run)
    return chosen


def _all_runs_section(report: Report, runs: Sequence[Record], folder: str) -> Section:
    section = Section("All runs", report.names.reserve("All runs"))
    rows, addresses = [], []
    for run in runs:
        accuracy = "missing" if not run.failure else f"failed: {run.failure[:80]}"
        if run.accuracy is not None:
            accuracy = f"{run.accuracy:.2%}" + (" of held-out data" if run.settings.validate_ else "")
        sparsity = "" if run.sparsity is None else percent(run.sparsity)
        seconds = "" if run.result is None else f"{run.result['seconds']:.0f} s"
        rows.append([run.name, sparsity, str(run.settings.seed), accuracy, seconds])
        addresses.append(f"{folder}/{quote(run.name)}/{CONFIG}" if run.versions and run.metrics else "")
    table = Table("", ("run, with a link to its settings", "pruned", "seed", "accuracy", "time"), rows)
    section.parts.append(folded(f"{len(rows)} runs", table.html(addresses)))
    return section

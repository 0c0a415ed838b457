"""Write a report: the page, its figures for print, its tables, and the results as data, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from ..files import full_disk_explained, write_bytes
from ..runs.run_folder import CONFIG
from . import matplotlib_figures, plotly_charts
from .chart_data import (
    accuracy_curves,
    flip_histogram,
    layer_shares,
    learning_curves,
    pruning_history,
    scan_curves,
    seconds_curves,
)
from .html_page import Section, UniqueNames, chart, folded, links_table, note, render_page
from .labels import PART_TITLES, by_network, counted, dense_references, label_runs, percent, scanned_option
from .lead import choice_table, lead_figure
from .records import Record, Records, results_json, versions_of
from .report_tables import ReportTable, accuracy_table, dead_table, multiply_add_table, paired_table, shots_table
from .seed_statistics import dense_cell, seeds_line

OPTION_NAMES = {"noise": "scale of the noise (λ)", "p": "power of the magnitude (p)", "lambda": "λ"}


@dataclass
class ReportFiles:
    """The figures and tables that a report writes. `names` keeps their file names and addresses unique."""

    folder: Path
    names: UniqueNames = field(default_factory=UniqueNames)
    tables: dict[str, ReportTable] = field(default_factory=dict)
    drawings: list[Callable[[], None]] = field(default_factory=list)

    def table(self, name: str, table: ReportTable) -> str:
        self.tables[name] = table
        return table.html()

    def figure(self, name: str) -> Path:
        return self.folder / "figures" / name


def write_report(records: Records, folder: Path, *, runs_folder: str = "..", claims: ReportTable | None = None) -> Path:
    """Write the whole report to a folder. Return the path of the page.

    Args:
        records: the runs.
        folder: where the report goes.
        runs_folder: where the links to the runs lead.
        claims: a table of what was claimed and what holds, for the beginning of the page.
    """
    with full_disk_explained(folder):
        for name in ("figures", "tables"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    files = ReportFiles(folder)
    sections = _lead_sections(files, records.runs, claims)
    sections += [_network_section(files, title, runs) for title, runs in by_network(records.runs).items()]
    sections.append(_all_runs_section(files, records.runs, runs_folder))
    with full_disk_explained(folder):
        for draw in files.drawings:
            draw()
    for name, table in files.tables.items():
        table.write(folder / "tables" / name)
    write_bytes(folder / "results.json", results_json(records).encode())
    path = folder / "index.html"
    write_bytes(path, render_page(records.title, introduction(records.runs), sections).encode())
    return path


def introduction(runs: Sequence[Record]) -> list[str]:
    """The number of runs, the kind of accuracy, and the versions of the software."""
    finished = sum(run.result is not None for run in runs)
    failed = sum(bool(run.failure) for run in runs)
    missing = len(runs) - finished - failed
    return [
        f"{finished} of {len(runs)} runs are finished, {failed} failed, {missing} are missing. Accuracies are those of "
        "the last epoch, never of the best; ± is the sample standard deviation over seeds.",
        versions_of(runs),
    ]


def _lead_sections(files: ReportFiles, runs: Sequence[Record], claims: ReportTable | None) -> list[Section]:
    """What a reader wants first: one figure, which method to use, and what holds. Empty if nothing is finished."""
    lead = lead_figure(runs) or lead_figure(runs, convolutional=False)
    if lead is None:
        return []
    section = Section("In short", files.names.reserve("In short"))
    name = files.names.reserve(section.anchor, "accuracy")
    curves, reference = accuracy_curves(lead.runs), dense_cell(lead.runs)
    files.drawings.append(lambda: matplotlib_figures.draw_accuracy(files.figure(name), lead.network, curves, reference))
    drawn = chart(plotly_charts.accuracy_chart(curves, reference), name)
    section.add("Accuracy against sparsity", drawn, note(f"{lead.network}, {seeds_line(lead.runs)}."))
    if (choice := choice_table("Which method at which sparsity", runs)) is not None:
        section.add(choice.title, files.table(files.names.reserve(choice.title), choice))
    if claims is not None:
        section.add(claims.title, files.table(files.names.reserve(claims.title), claims))
    return [section]


def _network_section(files: ReportFiles, title: str, runs: Sequence[Record]) -> Section:
    section = Section(title, files.names.reserve(title))
    parts = list(dict.fromkeys(part for run in runs for part in run.parts))
    for part in parts:
        in_part = [run for run in runs if part in run.parts]
        # Every part of a network shows its dense reference.
        shown = [*in_part, *dense_references(runs, in_part)]
        _add_part(files, section, files.names.reserve(section.anchor, part), PART_TITLES.get(part, part), shown)
    _add_training_details(files, section, runs)
    return section


def _add_part(files: ReportFiles, section: Section, name: str, title: str, runs: Sequence[Record]) -> None:
    table = accuracy_table(f"{section.title}: {title}", runs)
    option, path = scanned_option(runs), files.figure(name)
    if option is not None:
        scan, axis = scan_curves(runs, option), OPTION_NAMES.get(option, option.replace("_", " "))
        drawn = plotly_charts.scan_chart(scan, axis)
        files.drawings.append(lambda: matplotlib_figures.draw_scan(path, table.title, scan, axis))
    else:
        curves, reference = accuracy_curves(runs), dense_cell(runs)
        drawn = plotly_charts.accuracy_chart(curves, reference)
        files.drawings.append(lambda: matplotlib_figures.draw_accuracy(path, table.title, curves, reference))
    measured = any(run.accuracy is not None for run in runs if run.settings.method != "dense")
    content = [chart(drawn, name)] if measured else []
    content += [files.table(name, table), note(f"{seeds_line(runs)}, {_describe_epochs(runs)}.")]
    if (paired := paired_table(f"{section.title}: minus global magnitude", runs)) is not None:
        content += ["<h4>Minus global magnitude</h4>", files.table(files.names.reserve(name, "paired"), paired)]
    if (equal := multiply_add_table(f"{section.title}: at equal multiply-adds", runs)) is not None:
        content += ["<h4>At equal multiply-adds</h4>", files.table(files.names.reserve(name, "multiply-adds"), equal)]
    if (shots := shots_table(f"{section.title}: shots at zero", runs)) is not None:
        content += ["<h4>Shots at zero</h4>", files.table(files.names.reserve(name, "shots"), shots)]
    if (dead := dead_table(f"{section.title}: dead layers", runs)) is not None:
        content += ["<h4>Dead layers</h4>", files.table(files.names.reserve(name, "dead layers"), dead)]
    section.add(title, *content)


def _describe_epochs(runs: Sequence[Record]) -> str:
    epochs = sorted({run.settings.total_epochs for run in runs})
    schedules = sorted({str(kind) for run in runs if (kind := run.settings.option("schedule")) is not None})
    length = f"{epochs[0]} to {epochs[-1]} epochs (fine-tuning included)"
    if len(epochs) == 1:
        length = counted(epochs[0], "epoch")
    return f"{length}, schedule: {' and '.join(schedules)}" if schedules else length


def _add_training_details(files: ReportFiles, section: Section, runs: Sequence[Record]) -> None:
    """Add the figures about epochs, layers and flips. A report made from results.json alone does not have them."""
    requested = sorted({run.settings.sparsity for run in runs if run.settings.sparsity and run.metrics and run.result})
    learning = {sparsity: learning_curves(runs, sparsity) for sparsity in requested}
    learning = {sparsity: curves for sparsity, curves in learning.items() if curves}
    if not learning:
        return

    def add(title: str, figure: str, drawn: object, draw: Callable[[Path], None], *notes: str) -> None:
        name = files.names.reserve(section.anchor, figure)
        section.add(title, chart(drawn, name), *map(note, notes))
        files.drawings.append(lambda: draw(files.figure(name)))

    last = max(learning)
    title = f"{section.title}, {percent(last)} pruned"
    add(
        "Learning curves",
        "learning",
        plotly_charts.learning_chart(learning),
        lambda path: matplotlib_figures.draw_learning(path, title, learning[last]),
    )
    seconds = {sparsity: seconds_curves(runs, sparsity) for sparsity in learning}
    if all(seconds.values()):
        add(
            "Seconds per epoch",
            "seconds",
            plotly_charts.seconds_chart(seconds),
            lambda path: matplotlib_figures.draw_seconds(path, title, seconds[last]),
            "Mean over seeds. They fall where the network is shrunk as it is pruned; --no-shrink switches that off.",
        )
    shares = {sparsity: layer_shares(runs, sparsity) for sparsity in learning}
    add(
        "Weights kept in each layer",
        "layers",
        plotly_charts.layers_chart(shares),
        lambda path: matplotlib_figures.draw_layers(path, title, shares[last]),
        "Mean over seeds, in percent of the weights of the layer. Red: the layer is dead.",
    )
    shown = _one_run_per_label(runs)
    flips = {label: histogram for label, run in shown.items() if (histogram := flip_histogram(run)) is not None}
    if flips:
        flips_label = list(flips)[-1]
        add(
            "Sign flips of kept and pruned weights",
            "flips",
            plotly_charts.flips_chart(flips),
            lambda path: matplotlib_figures.draw_flips(path, flips_label, flips[flips_label]),
            "One seed each.",
        )
    histories = {label: history for label, run in shown.items() if (history := pruning_history(run))}
    if histories:
        history_label = list(histories)[-1]
        add(
            "When each layer was pruned",
            "pruning history",
            plotly_charts.pruning_history_chart(histories),
            lambda path: matplotlib_figures.draw_pruning_history(path, history_label, histories[history_label]),
            "One seed each.",
        )


def _one_run_per_label(runs: Sequence[Record]) -> dict[str, Record]:
    """One finished run of every method and sparsity, by its label."""
    labels, chosen = label_runs(runs), dict[str, Record]()
    for run in runs:
        if run.result is not None and run.settings.sparsity and run.settings.method != "dense":
            chosen.setdefault(f"{labels[run.name]}, {percent(run.settings.sparsity)}", run)
    return chosen


def _all_runs_section(files: ReportFiles, runs: Sequence[Record], folder: str) -> Section:
    section = Section("All runs", files.names.reserve("All runs"))
    rows = []
    for run in runs:
        accuracy = "missing" if not run.failure else f"failed: {run.failure[:80]}"
        if run.accuracy is not None:
            accuracy = f"{run.accuracy:.2%}" + (" of held-out data" if run.settings.validate_ else "")
        address = f"{folder}/{quote(run.name)}/{CONFIG}" if run.versions and run.metrics else ""
        sparsity = "" if run.sparsity is None else percent(run.sparsity)
        seconds = "" if run.result is None else f"{run.result['seconds']:.0f} s"
        rows.append((run.name, address, (sparsity, str(run.settings.seed), accuracy, seconds)))
    table = links_table(("run, with a link to its settings", "pruned", "seed", "accuracy", "time"), rows)
    section.parts.append(folded(f"{len(rows)} runs", table))
    return section

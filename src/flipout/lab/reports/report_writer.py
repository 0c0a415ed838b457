"""A report: the page, its figures for print, its tables, and the results as data, all in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from ..files import write_bytes
from ..runs.run_folder import CONFIG
from . import charts, figures
from .labels import by_network, counted, labels, percent, references, scanned
from .page import Section, chart, folded, links_table, note, page, slug
from .records import Record, Records, brief_text, versions_of
from .report_tables import Table, accuracy_table, dead_table, shots_table
from .seed_statistics import dense, seeds_line
from .series import accuracy_curves, flip_histogram, layer_shares, learning_curves, pruned_when, scan_curves

PART_TITLES = {
    "results": "Accuracy against sparsity",
    "ablation": "Is it just the noise?",
    "schedules": "When to prune",
    "table2": "The scale of the noise",
    "table3": "The power of the magnitude",
    "corrections": "The paper to the letter",
    "aim": "Runs in which shots were counted",
    "others": "Other methods under the same budget",
    "runs": "Runs that are not part of a grid",
}
OPTION_NAMES = {"noise": "scale of the noise (λ)", "p": "power of the magnitude (p)", "lambda": "λ"}


@dataclass
class Report:
    """What is written where."""

    folder: Path
    tables: dict[str, Table] = field(default_factory=dict)
    drawings: list[Callable[[], None]] = field(default_factory=list)

    def table(self, name: str, table: Table) -> str:
        self.tables[name] = table
        return table.html()

    def figure(self, name: str) -> Path:
        return self.folder / "figures" / name


def write_report(records: Records, folder: Path, *, runs_folder: str = "..") -> Path:
    """Writes everything into a folder, and gives the path of the page."""
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    report = Report(folder)
    sections = [_network(report, title, runs) for title, runs in by_network(records.runs).items()]
    sections.append(_all_runs(records.runs, runs_folder))
    for draw in report.drawings:
        draw()
    for name, table in report.tables.items():
        table.write(folder / "tables" / name)
    write_bytes(folder / "results.json", brief_text(records).encode())
    path = folder / "index.html"
    write_bytes(path, page(records.title, lead(records.runs), sections).encode())
    return path


def lead(runs: Sequence[Record]) -> list[str]:
    """How many runs, what accuracy is meant, which versions."""
    finished = sum(run.result is not None for run in runs)
    failed = sum(bool(run.failure) for run in runs)
    missing = len(runs) - finished - failed
    return [
        f"{finished} of {len(runs)} runs are finished, {failed} failed, {missing} are missing. Accuracies are those of "
        "the last epoch, never the best; ± is the sample standard deviation over seeds.",
        versions_of(runs),
    ]


def _network(report: Report, title: str, runs: Sequence[Record]) -> Section:
    section = Section(title)
    parts = list(dict.fromkeys(part for run in runs for part in run.parts))
    for part in parts:
        of = [run for run in runs if part in run.parts]
        # The reference belongs to every part of its network.
        _part(report, section, f"{slug(title)}-{slug(part)}", PART_TITLES.get(part, part), [*of, *references(runs, of)])
    _inside(report, section, slug(title), runs)
    return section


def _part(report: Report, section: Section, name: str, title: str, runs: Sequence[Record]) -> None:
    table = accuracy_table(f"{section.title}: {title}", runs)
    what = f"{seeds_line(runs)}, {_epochs(runs)}."
    option, path = scanned(runs), report.figure(name)
    if option is not None:
        scan, axis = scan_curves(runs, option), OPTION_NAMES.get(option, option.replace("_", " "))
        drawn = charts.scan_chart(scan, axis)
        report.drawings.append(lambda: figures.draw_scan(path, table.title, scan, axis))
    else:
        curves, reference = accuracy_curves(runs), dense(runs)
        drawn = charts.accuracy_chart(curves, reference)
        report.drawings.append(lambda: figures.draw_accuracy(path, table.title, curves, reference))
    there = any(run.accuracy is not None for run in runs if run.settings.method != "dense")
    content = [chart(drawn, name)] if there else []
    content += [report.table(name, table), note(what)]
    if (shots := shots_table(f"{section.title}: shots at zero", runs)) is not None:
        content += ["<h4>Shots at zero</h4>", report.table(f"{name}-shots", shots)]
    if (dead := dead_table(f"{section.title}: layers that died", runs)) is not None:
        content += ["<h4>Layers that died</h4>", report.table(f"{name}-dead-layers", dead)]
    section.add(title, *content)


def _epochs(runs: Sequence[Record]) -> str:
    epochs = sorted({run.settings.total_epochs for run in runs})
    schedules = sorted({str(kind) for run in runs if (kind := run.settings.option("schedule")) is not None})
    said = f"{epochs[0]} to {epochs[-1]} epochs (fine-tuning included)"
    if len(epochs) == 1:
        said = counted(epochs[0], "epoch")
    return f"{said}, schedule: {' and '.join(schedules)}" if schedules else said


def _inside(report: Report, section: Section, name: str, runs: Sequence[Record]) -> None:
    """What happened in the runs: epochs, layers, flips. Nothing of it is there in results that were only kept."""
    asked = sorted({run.settings.sparsity for run in runs if run.settings.sparsity and run.metrics and run.result})
    learning = {sparsity: learning_curves(runs, sparsity) for sparsity in asked}
    learning = {sparsity: curves for sparsity, curves in learning.items() if curves}
    if not learning:
        return
    last = max(learning)
    section.add("Learning curves", chart(charts.learning_chart(learning), f"{name}-learning"))
    title = f"{section.title}, {percent(last)} pruned"
    report.drawings.append(lambda: figures.draw_learning(report.figure(f"{name}-learning"), title, learning[last]))
    shares = {sparsity: layer_shares(runs, sparsity) for sparsity in learning}
    told = note("Mean over seeds, in percent of the layer's weights. Red: the layer is dead.")
    section.add("What each layer keeps", chart(charts.layers_chart(shares), f"{name}-layers"), told)
    report.drawings.append(lambda: figures.draw_layers(report.figure(f"{name}-layers"), title, shares[last]))
    shown = _one_of_each(runs)
    flips = {label: found for label, run in shown.items() if (found := flip_histogram(run)) is not None}
    if flips:
        label = list(flips)[-1]
        section.add(
            "How often weights flipped", chart(charts.flips_chart(flips), f"{name}-flips"), note("One seed of each.")
        )
        report.drawings.append(lambda: figures.draw_flips(report.figure(f"{name}-flips"), label, flips[label]))
    when = {label: layers for label, run in shown.items() if (layers := pruned_when(run))}
    if when:
        chosen = list(when)[-1]
        section.add("Pruned when", chart(charts.when_chart(when), f"{name}-when"), note("One seed of each."))
        report.drawings.append(lambda: figures.draw_when(report.figure(f"{name}-when"), chosen, when[chosen]))


def _one_of_each(runs: Sequence[Record]) -> dict[str, Record]:
    """One run of every method and sparsity, by what it is called."""
    named, found = labels(runs), dict[str, Record]()
    for run in runs:
        if run.result is not None and run.settings.sparsity and run.settings.method != "dense":
            found.setdefault(f"{named[run.name]}, {percent(run.settings.sparsity)}", run)
    return found


def _all_runs(runs: Sequence[Record], folder: str) -> Section:
    section = Section("All runs")
    rows = []
    for run in runs:
        came_to = "missing" if not run.failure else f"failed: {run.failure[:80]}"
        if run.accuracy is not None:
            came_to = f"{run.accuracy:.2%}"
        address = f"{folder}/{quote(run.name)}/{CONFIG}" if run.versions and run.metrics else ""
        sparsity = "" if run.sparsity is None else percent(run.sparsity)
        seconds = "" if run.result is None else f"{run.result['seconds']:.0f} s"
        rows.append((run.name, address, (sparsity, str(run.settings.seed), came_to, seconds)))
    table = links_table(("run, with its settings", "pruned", "seed", "accuracy", "time"), rows)
    section.parts.append(folded(f"{len(rows)} runs", table))
    return section

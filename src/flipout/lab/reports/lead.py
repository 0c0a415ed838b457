"""What a reader wants first: one figure on a convolutional network, and which method to use at which sparsity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..models.model_catalogue import MODELS
from .confidence_intervals import PairedDifference
from .labels import by_network, dense_references, percent
from .paired_differences import is_reference, paired_differences
from .records import Record
from .report_tables import ReportTable, TableEntry
from .seed_statistics import Cell, cell_of, cells

SMOKE = ("smoke test",)
FLIPOUT = "FlipOut"
CHOICE_NOTE = (
    "Every method under our schedule, on the test set. The difference to global magnitude is paired by seed, with its "
    "95 % confidence interval (Student's t). A method is recommended only if the interval does not contain 0. "
    "Intervals are not corrected for the number of comparisons: one in twenty excludes 0 by chance."
)


@dataclass(frozen=True)
class LeadFigure:
    """The network of the first figure, and the runs that it shows."""

    network: str
    runs: tuple[Record, ...]


def measured_networks(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The networks with results on the test set, without smoke tests.

    Convolutional networks come before others, and long training before short.
    """
    tested = [run for run in runs if not run.settings.validate_ and run.parts != SMOKE]
    networks = {
        title: group
        for title, group in by_network(tested).items()
        if any(run.accuracy is not None and run.settings.method != "dense" for run in group)
    }
    order = sorted(networks, key=lambda title: _rank(networks[title][0]))
    return {title: networks[title] for title in order}


def _rank(run: Record) -> tuple[bool, str, int]:
    settings = run.settings
    return not _is_convolutional(run), settings.model, -settings.epochs


def _is_convolutional(run: Record) -> bool:
    return run.settings.model not in MODELS or MODELS[run.settings.model].convolutional


def lead_figure(runs: Sequence[Record], *, convolutional: bool = True) -> LeadFigure | None:
    """The network with the most finished runs, and its methods without their ablations.

    Args:
        runs: all runs of a report.
        convolutional: show only a convolutional network.
    """
    shown = {}
    for title, group in measured_networks(runs).items():
        plain = [run for run in group if run.settings.given_options.keys() <= {"schedule"}]
        plain = [run for run in plain if run.settings.sparsity is not None]
        measured = any(run.accuracy is not None and run.settings.method != "dense" for run in plain)
        if measured and (_is_convolutional(group[0]) or not convolutional):
            # Our schedule has the solid lines.
            shown[title] = sorted(plain, key=lambda run: run.settings.option("schedule") == "paper")
    if not shown:
        return None
    network = max(shown, key=lambda title: sum(run.result is not None for run in shown[title]))
    return LeadFigure(network, (*shown[network], *dense_references(runs, shown[network])))


def choice_table(title: str, runs: Sequence[Record]) -> ReportTable | None:
    """Which method to use at which sparsity: FlipOut against global magnitude, and who else is ahead.

    None if global magnitude was not run under our schedule.
    """
    rows = []
    for network, group in measured_networks(runs).items():
        rows += [(TableEntry("" if number else network), *row) for number, row in enumerate(_choices(group))]
    heading = (
        "network",
        "pruned",
        "seeds",
        "global magnitude",
        "FlipOut",
        "FlipOut minus magnitude",
        "use",
        "also ahead",
    )
    return ReportTable(title, heading, tuple(rows), (CHOICE_NOTE,), texts=(0, 6, 7)) if rows else None


def _choices(group: Sequence[Record]) -> Iterable[tuple[TableEntry, ...]]:
    """For each sparsity the row of the choice table, without its first column."""
    ours = [run for run in group if run.settings.option("schedule") in ("default", None)]
    ours = [run for run in ours if run.settings.sparsity is not None and run.settings.method != "dense"]
    differences, measured = paired_differences(ours), cells(ours)
    for sparsity in sorted({run.settings.sparsity for run in ours if run.settings.sparsity is not None}):
        magnitude = cell_of([run for run in ours if is_reference(run) and run.settings.sparsity == sparsity])
        found = {label: row[sparsity] for label, row in differences.items() if sparsity in row}
        if not magnitude.values:
            continue
        flipout = found.pop(FLIPOUT, None)
        accuracy = measured.get(FLIPOUT, {}).get(sparsity, Cell(()))
        yield (
            TableEntry(percent(sparsity)),
            TableEntry(str(magnitude.seeds if flipout is None else len(flipout.values))),
            TableEntry(str(magnitude)),
            TableEntry(str(accuracy) if accuracy.values or accuracy.failed else "not run yet"),
            TableEntry("" if flipout is None else str(flipout), flipout is not None and flipout.is_shown),
            TableEntry(_verdict(flipout, accuracy), bold=flipout is not None and flipout.is_shown),
            TableEntry(_also_ahead(found, flipout)),
        )


def _verdict(difference: PairedDifference | None, flipout: Cell) -> str:
    if flipout.failed:
        return f"global magnitude: {flipout.failed} of FlipOut's seeds failed"
    if difference is None:
        return "not run yet"
    if difference.interval is None:
        return "cannot be said: one seed"
    if difference.is_shown:
        return "FlipOut" if difference.is_positive else "global magnitude"
    return "either: no difference shown"


def _also_ahead(others: dict[str, PairedDifference], flipout: PairedDifference | None) -> str:
    """The best other method that is shown to be better than global magnitude, and has a higher mean than FlipOut."""
    ahead = {label: found for label, found in others.items() if found.is_positive}
    if flipout is not None:
        ahead = {label: found for label, found in ahead.items() if found.mean > flipout.mean}
    if not ahead:
        return ""
    best = max(ahead, key=lambda label: ahead[label].mean)
    return f"{best}: {ahead[best]}"


def trials_table(title: str, runs: Sequence[Record]) -> ReportTable:
    """Every method of one network, one row for each sparsity: accuracy, and the difference to global magnitude."""
    differences, rows = paired_differences(runs), []
    by_sparsity = [(sparsity, label, cell) for label, row in cells(runs).items() for sparsity, cell in row.items()]
    for sparsity, label, cell in sorted(by_sparsity, key=lambda entry: -entry[0]):
        difference = differences.get(label, {}).get(sparsity)
        rows.append(
            (
                TableEntry(label),
                TableEntry(percent(sparsity)),
                TableEntry(str(cell.seeds)),
                TableEntry(str(cell) if cell.values or cell.failed else "not run yet"),
                TableEntry(
                    "" if difference is None else str(difference), difference is not None and difference.is_shown
                ),
            )
        )
    heading = ("method", "pruned", "seeds", "accuracy", "minus global magnitude")
    return ReportTable(title, heading, tuple(rows))

"""What a reader wants first: one figure on a convolutional network, and which method to use at which sparsity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..models.model_catalogue import MODELS
from ..runs.method_options import SECOND_CHANCES
from ..tables import Table, bold_if
from .labels import by_network, dense_references, percent
from .records import Record
from .report_tables import is_reference, paired_differences
from .seed_statistics import Cell, PairedDifference, cell_of, cells, holm

ASIDE = {"smoke test", "one shot", "channels"}
"""Parts that have a section of their own."""
FLIPOUT, EARLY, REVIVED = "FlipOut", "Global magnitude, end 0.2", "Global magnitude, second chances"
SHOWN_OPTIONS = {"schedule", SECOND_CHANCES, "end"}  # of the methods in the first figure
CHOICE_HEADING = (
    "network",
    "pruned",
    "use",
    "seeds",
    "global magnitude",
    "FlipOut",
    "FlipOut minus magnitude",
    "FlipOut minus magnitude that ends at 20 %",
    "FlipOut minus magnitude with second chances",
    "highest mean of the others, minus FlipOut",
)
CHOICE_NOTES = {
    0: "Every method under our schedule, on the test set. FlipOut has second chances. Global magnitude prunes "
    "permanently, until half of training.",
    7: "Magnitude that ends earlier prunes until 20 % of it.",
    8: "Magnitude with second chances shows what the ranking of FlipOut adds.",
    1: "Accuracies are those of the seeds that FlipOut and global magnitude both have. Differences are paired by seed "
    "and have a 95 % confidence interval (Student's t). Bold differences are significant, corrected for all "
    "comparisons of this table (Holm): with 95 % confidence none of them is due to chance. Only they decide what to "
    "use.",
}
"""The notes of the choice table, by the column that they are about."""


@dataclass(frozen=True)
class LeadFigure:
    """The network of the first figure, and the runs that it shows."""

    network: str
    runs: tuple[Record, ...]


def measured_networks(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The networks with results on the test set, without those of parts that stand aside.

    Convolutional networks come before others, and long training before short.
    """
    tested = [run for run in runs if not run.settings.validate_ and not set(run.parts) <= ASIDE]
    networks = {
        title: group
        for title, group in by_network(tested).items()
        if any(run.accuracy is not None and run.is_pruned for run in group)
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
        plain = [run for run in group if run.settings.given_options.keys() <= SHOWN_OPTIONS]
        plain = [run for run in plain if run.settings.sparsity is not None]
        measured = any(run.accuracy is not None and run.is_pruned for run in plain)
        if measured and (_is_convolutional(group[0]) or not convolutional):
            # Our schedule has the solid lines.
            shown[title] = sorted(plain, key=lambda run: run.settings.option("schedule") == "paper")
    if not shown:
        return None
    network = max(shown, key=lambda title: sum(run.result is not None for run in shown[title]))
    return LeadFigure(network, (*shown[network], *dense_references(runs, shown[network])))


def choice_table(title: str, runs: Sequence[Record]) -> Table | None:
    """Which method to use at which sparsity: FlipOut against global magnitude, permanent and with second chances.

    None if they were not run under our schedule. A comparison that was run nowhere has no column.
    """
    rows = [
        ["" if number else network, *choice.row()]
        for network, found in choices(runs).items()
        for number, choice in enumerate(found)
    ]
    if not rows:
        return None
    columns = [c for c in range(len(CHOICE_HEADING)) if c < 7 or any(row[c] for row in rows)]
    notes = " ".join(text for column, text in CHOICE_NOTES.items() if column in columns)
    texts = [place for place, column in enumerate(columns) if column in (0, 2, 9)]
    heading = [CHOICE_HEADING[column] for column in columns]
    return Table(title, heading, [[row[c] for c in columns] for row in rows], (notes,), texts)


@dataclass(frozen=True)
class Choice:
    """What decides which method to use for one network at one sparsity."""

    sparsity: float
    magnitude: Cell
    flipout: Cell
    others: Mapping[str, Cell]
    gain: PairedDifference
    """FlipOut minus magnitude that prunes permanently, ..."""
    early: PairedDifference
    """... minus magnitude that ends early, ..."""
    revived: PairedDifference
    """... and minus magnitude with second chances."""

    @property
    def verdict(self) -> str:
        """Which method to use."""
        if self.flipout.failed:
            return f"global magnitude: {self.flipout.failed} of FlipOut's seeds failed"
        if self.gain.interval is None:
            return "cannot be said: " + ("no common seed", "one seed", "two seeds")[len(self.gain.values)]
        if self.gain.is_negative or self.early.is_negative:
            return "global magnitude" if self.gain.is_negative else "global magnitude that ends at 20 %"
        if not self.gain.is_significant:
            return "either: no significant difference"
        if self.revived.is_negative:
            return "global magnitude with second chances"
        alone = self.revived.interval is None or self.revived.is_positive
        choice = "FlipOut" if alone else "second chances, with either ranking"
        if self.early.interval is not None and not self.early.is_positive:
            choice += ", or magnitude that ends at 20 %"
        return choice

    def row(self) -> list[str]:
        """The row of the choice table without its first column."""
        magnitude, flipout, gain = self.magnitude, self.flipout, self.gain
        both = magnitude.by_seed.keys() & flipout.by_seed.keys()
        dead = magnitude.runs_with_dead_layers == magnitude.seeds
        note = " (permanent magnitude: a dead layer in every run)" if dead and gain.is_positive else ""
        return [
            percent(self.sparsity),
            bold_if(self.verdict + note, gain.is_significant and not flipout.failed),
            str(len(both) or magnitude.seeds),
            str(magnitude.at(both) if both else magnitude),
            str(flipout.at(both) if both else flipout),
            bold_if(gain if flipout.values else "", gain.is_significant),
            *(bold_if(each if each.values else "", each.is_significant) for each in (self.early, self.revived)),
            _highest_other(self.others, flipout),
        ]


def choices(runs: Sequence[Record]) -> dict[str, list[Choice]]:
    """What decides for each network at each sparsity, corrected for the number of all comparisons."""
    found = {network: list(_choices(group)) for network, group in measured_networks(runs).items()}
    every = [choice for group in found.values() for choice in group]
    corrected = iter(holm([each for choice in every for each in (choice.gain, choice.early, choice.revived)]))
    return {
        network: [
            replace(choice, gain=next(corrected), early=next(corrected), revived=next(corrected)) for choice in group
        ]
        for network, group in found.items()
    }


def _choices(group: Sequence[Record]) -> Iterable[Choice]:
    """What decides at each sparsity, each comparison by itself."""
    ours = [run for run in group if run.settings.option("schedule") in ("default", None)]
    ours = [run for run in ours if run.settings.sparsity is not None and run.is_pruned]
    measured = cells(ours)
    for sparsity in sorted({run.settings.sparsity for run in ours if run.settings.sparsity is not None}):
        magnitude = cell_of([run for run in ours if is_reference(run) and run.settings.sparsity == sparsity])
        column = {label: row[sparsity] for label, row in measured.items() if sparsity in row}
        flipout = column.pop(FLIPOUT, Cell(()))
        if magnitude.values and (flipout.values or flipout.failed):
            early, revived = (flipout.minus(column.get(label, Cell(()))) for label in (EARLY, REVIVED))
            yield Choice(sparsity, magnitude, flipout, column, flipout.minus(magnitude), early, revived)


def _highest_other(others: Mapping[str, Cell], flipout: Cell) -> str:
    """The best other method with a higher mean than FlipOut, over the seeds that both have."""
    ahead = {
        label: difference
        for label, cell in others.items()
        if not cell.failed and (difference := cell.minus(flipout)).values and difference.mean > 0
    }
    if not ahead:
        return ""
    best = max(ahead, key=lambda label: ahead[label].mean)
    return f"{best}: {ahead[best]}"


def trials_table(title: str, runs: Sequence[Record]) -> Table:
    """What has finished of one network, one row for each method and sparsity: accuracy, and minus global magnitude."""
    differences, rows = paired_differences(runs), []
    by_sparsity = [(sparsity, label, cell) for label, row in cells(runs).items() for sparsity, cell in row.items()]
    for sparsity, label, cell in sorted(by_sparsity, key=lambda entry: -entry[0]):
        difference = differences.get(label, {}).get(sparsity)
        shown = "" if difference is None else bold_if(difference, difference.is_significant)
        if cell.values or cell.failed:
            rows.append([label, percent(sparsity), str(cell.seeds), str(cell), shown])
    return Table(title, ("method", "pruned", "seeds", "accuracy", "minus global magnitude"), rows)

"""One-shot pruning of dense networks, beside networks that were pruned while they trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..tables import Table, bold_if
from .labels import by_network, label_runs
from .records import Record, grouped
from .report_tables import by_sparsity
from .seed_statistics import cells

PART = "one shot"
"""The part of a grid whose runs are compared here."""
MAGNITUDE = "One shot: magnitude"


def one_shot_networks(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The networks that were pruned in one shot with some seeds, by title."""
    networks = by_network(run for run in runs if PART in run.parts)
    return {title: group for title, group in networks.items() if any(run.is_pruned for run in complete(group))}


def complete(runs: Sequence[Record]) -> list[Record]:
    """The runs of the methods and sparsities that all seeds have finished."""
    labels = label_runs(runs)
    groups = grouped(runs, lambda run: (labels[run.name], run.settings.sparsity))
    return [run for group in groups.values() if all(each.result for each in group) for run in group]


def minus_magnitude_table(title: str, runs: Sequence[Record]) -> Table:
    """Methods by sparsity: the difference to magnitude in one shot, with batch norms estimated again."""
    found = cells(runs)
    reference = found.get(MAGNITUDE, {})
    rows = {}
    for label, row in found.items():
        if label != MAGNITUDE:
            differences = {s: cell.minus(reference[s]) for s, cell in row.items() if s in reference}
            rows[label] = {s: bold_if(each, each.is_significant) for s, each in differences.items()}
    return by_sparsity(title, rows, first="minus magnitude in one shot", absent="")

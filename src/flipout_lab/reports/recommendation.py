"""The recommendation: what to use in which situation, and what it costs, on one convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from ..tables import Table, bold_if
from .channels import DENSE, NAMES, by_size, networks_in_channels
from .labels import percent
from .lead import EARLY, Choice, choices, lead_figure
from .one_shot import complete, one_shot_networks
from .records import Record
from .seed_statistics import Cell, cell_of, cells, dense_cell, holm

HEADING = ("you have", "use", "accuracy", "it costs, in points of accuracy")
NOTE = (
    "{network}. The dense network has {dense}. The cost is the accuracy minus that of the dense network, paired by "
    "seed, with a 95 % confidence interval; bold costs are significant, corrected for the rows of this table (Holm)."
)
SURGEON = "One shot: Optimal Brain Surgeon"
CHEAP = -1.0
"""Points of accuracy. One-shot pruning is recommended up to the sparsity that costs less."""


def recommendation_table(title: str, runs: Sequence[Record]) -> Table | None:
    """What to use for each sparsity, and without training; None without a dense network to compare with."""
    lead = lead_figure(runs)
    dense = None if lead is None else dense_cell(lead.runs)
    if lead is None or dense is None or not dense.values:
        return None
    rows: list[tuple[str, str, Cell]] = [
        (f"a network to train, {percent(choice.sparsity)} to prune", choice.verdict, _best(choice))
        for choice in choices(runs).get(lead.network, ())
        if choice.gain.interval is not None
    ]
    rows += _channels(lead.network, runs)
    if (found := _one_shot(lead.network, runs, dense)) is not None:
        sparsity, cell = found
        use = f"`flipout.prune`, up to {percent(sparsity)} (Optimal Brain Surgeon)"
        rows.append(("a trained network, no time to train it again", use, cell))
    if not rows:
        return None
    costs = holm([cell.minus(dense) for _, _, cell in rows])
    shown = [
        [have, use, str(cell), bold_if(cost, cost.is_significant)]
        for (have, use, cell), cost in zip(rows, costs, strict=True)
    ]
    return Table(title, HEADING, shown, (NOTE.format(network=lead.network, dense=dense),), (0, 1))


def _best(choice: Choice) -> Cell:
    """The accuracy of what is recommended; of FlipOut if there are several."""
    if choice.gain.is_negative:
        return choice.magnitude
    return choice.others[EARLY] if choice.early.is_negative else choice.flipout


def _channels(network: str, runs: Sequence[Record]) -> list[tuple[str, str, Cell]]:
    """For each size the highest mean of what was pruned in channels; a dense network of the size if that is better."""
    of_network = networks_in_channels(runs).get(network)
    sized = by_size(of_network) if of_network else {}
    found = {key: cell for key, group in sized.items() if (cell := cell_of(group)).seeds > 2}
    rows = []
    for size in sorted({size for size, _ in found} & NAMES.keys(), reverse=True):
        of_size = {label: cell for (other, label), cell in found.items() if other == size}
        dense = of_size.pop(DENSE, None)
        if not of_size:
            continue
        use, cell = max(of_size.items(), key=lambda item: item[1].mean)
        use = f"{use}, in channels"
        if dense is not None and cell.minus(dense).is_negative:
            use, cell = "a dense network of that size", dense
        rows.append((f"a network that may do {NAMES[size]} of the multiply-adds", use, cell))
    return rows


def _one_shot(network: str, runs: Sequence[Record], dense: Cell) -> tuple[float, Cell] | None:
    """The highest sparsity at which Optimal Brain Surgeon costs little, and the accuracy there; else the lowest one."""
    surgeon = cells(complete(one_shot_networks(runs).get(network, []))).get(SURGEON, {})
    cheap = [s for s, cell in surgeon.items() if (cost := cell.minus(dense)).values and cost.mean > CHEAP]
    if not surgeon:
        return None
    sparsity = max(cheap, default=min(surgeon))
    return sparsity, surgeon[sparsity]

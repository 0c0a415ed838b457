"""What whole channels can prune of a network, and which channels stay, with the place in the user's code."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..text_table import table as text_table
from ..weights import Weight
from .budgets import TITLES, Costs
from .channel_table import ChannelTable, why_outputs_stay
from .granularity import Target

SHOWN = 20
"""How many layers the table names."""


def channel_report(
    table: ChannelTable,
    costs: Costs,
    weights: Sequence[Weight],
    target: Target,
    allowed: int | None,
    examples: int = 1,
) -> str:
    """The share of a network that whole channels can prune, and a table of the layers that keep outputs.

    Args:
        table: the channels.
        costs: what they cost.
        weights: the weights that are pruned.
        target: what the costs are.
        allowed: what is kept at the end; None if it is not planned.
        examples: how many examples the costs are of; those of one are shown.
    """
    total = costs.total
    last = torch.zeros(costs.units, dtype=torch.bool)
    last[sorted(set(table.families))] = True  # one unit of every family stays
    free, title = total - costs.counts(last).kept, TITLES["macs" if target == "latency" else target]
    shown = f"{free // examples:,} of {total // examples:,} {title}"
    text = f"{shown} ({free / max(1, total):.1%}) can be removed in whole channels"
    if allowed is not None and free:
        text += f"; {min(1.0, (total - allowed) / free):.1%} of these will go"
    rows = _rows(table, weights)
    if not rows:
        return f"{text}. Every layer can lose outputs"
    if len(rows) > SHOWN:
        rows = [*rows[:SHOWN], (f"and {len(rows) - SHOWN} more", "", "", "")]
    stays = text_table(("layer", "outputs", "stay", "because"), rows, texts=(0, 3))
    return f"{text}. These layers keep outputs:\n{stays}"


def _rows(table: ChannelTable, weights: Sequence[Weight]) -> list[tuple[str, str, str, str]]:
    """For each layer with outputs that always stay: its name, how many outputs it has, how many stay, and why."""
    rows = []
    for number, weight in enumerate(weights):
        outputs = table.outputs[number]
        stay = int((outputs == table.units).sum())
        if stay:
            why = why_outputs_stay(weight, table.graph, table.problem)
            rows.append((weight.name, f"{len(outputs):,}", f"{stay:,}", why))
    return rows

"""Data-parallel ranks must prune the same weights: comparing them, and naming the cause if they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..events import Selection
from ..fingerprints import fingerprints
from ..host import Host
from ..plain_data import describe, difference
from .base import Guard

SWITCH = "If the ranks are not replicas of one network, set flipout.Pruner.check_ranks = False"


class RankReport(NamedTuple):
    """What a rank is about to do: numbers and names that are equal on every rank if the ranks agree."""

    step: int
    settings: dict[str, Any]
    masks: list[int]
    weights: list[int]
    choice: list[int]
    shards: list[Any] = []  # noqa: RUF012
    """Which shard of each weight the rank holds; only ranks with the same shard are compared. Empty: all hold all."""


class Ranks(Guard):
    """Compares the ranks of a data-parallel training before each pruning."""

    def before_apply(self, pruner: Host, selection: Selection) -> None:
        check_ranks(pruner, selection)


def check_ranks(pruner: Host, selection: Selection | None = None) -> None:
    """Raise an error on every rank if the ranks are about to prune different weights.

    Every rank of the model's process group must call this at the same time: it exchanges a few numbers for each weight.
    """
    if not (pruner.check_ranks and torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    group = process_group(pruner.model)
    ranks = torch.distributed.get_world_size(group)
    if ranks < 2:
        return
    reports: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(reports, _report(pruner, selection), group=group)
    if problem := disagreement(reports):
        raise RuntimeError(f"the ranks of this training differ, and nothing was pruned. {problem}. {SWITCH}")


def process_group(model: nn.Module) -> Any:
    """The process group of a data-parallel model; None, which stands for all ranks, for any other."""
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


def disagreement(reports: Sequence[RankReport]) -> str | None:
    """Describe the first difference between ranks and its likely cause; None if there is none."""
    first = reports[0]
    if any(report.settings["weights"] != first.settings["weights"] for report in reports):
        return (
            "They hold different weights, as in pipeline parallelism, where each rank has its own layers: every rank "
            "would rank its own weights alone, and not the whole network. Use FSDP2 (fully_shard) or "
            "DistributedDataParallel instead. To prune what each rank holds "
            "by itself to the same sparsity, switch the comparison off"
        )
    names = list(first.settings["weights"])
    for rank, other in enumerate(reports[1:], 1):
        if other.step != first.step:
            return (
                f"Rank 0 is at step {first.step:,} and rank {rank} at step {other.step:,}: take the same optimizer "
                "steps on every rank, and load the same state on every rank"
            )
        if lines := difference(first.settings, other.settings, ("on rank 0", f"on rank {rank}")):
            return "Use the same settings on every rank, the seed included:\n  " + "\n  ".join(lines) + "\n"
        differing = _differing(names, reports, rank, "weights")
        if differing and not first.step:
            return (
                f"Rank 0 and rank {rank} start from different weights ({differing}): wrap the model in "
                "DistributedDataParallel, which broadcasts the weights of rank 0, before you attach the pruner; or "
                "create the model with the same torch.manual_seed() on every rank"
            )
        if where := _differing(names, reports, rank, "masks"):
            return (
                f"The masks of rank 0 and rank {rank} differ ({where}): load the same state on every rank, and attach "
                "the pruner after DistributedDataParallel has broadcast the weights"
            )
        if where := _differing(names, reports, rank, "choice"):
            cause = (
                f"their weights differ too ({differing}): is the model wrapped in DistributedDataParallel, with its "
                "parameters equal on every rank?"
                if differing
                else "their weights are equal, so the criterion depends on the data of a rank: sum what it reads over "
                "the ranks with torch.distributed.all_reduce()"
            )
            return f"Rank 0 and rank {rank} would prune different weights ({where}); {cause}"
    return None


def _report(pruner: Host, selection: Selection | None) -> RankReport:
    marks = [] if selection is None else [*selection.prune, *selection.grow]
    return RankReport(
        pruner.step,
        describe(pruner.settings()),
        fingerprints(weight.mask for weight in pruner.weights),
        fingerprints(weight.local for weight in pruner.weights),
        fingerprints(marks),
        [weight.view.coordinates for weight in pruner.weights],
    )


def _differing(names: list[str], reports: Sequence[RankReport], rank: int, field: str) -> str:
    """The names of the weights whose numbers differ on a rank from those of the first rank with the same shard of them.

    A selection may list its weights twice: pruned, and grown.
    """
    places = set()
    for number, mine in enumerate(getattr(reports[rank], field)):
        place = number % len(names)
        alike = next(
            other for other in reports if other.shards[place : place + 1] == reports[rank].shards[place : place + 1]
        )
        if getattr(alike, field)[number] != mine:
            places.add(place)
    return ", ".join(names[place] for place in sorted(places)[:5]) + (", ..." if len(places) > 5 else "")

"""The time of a call against its multiply-adds, measured on smaller copies of a network.

The multiply-adds say little about the time: a small layer does not use all of a processor. So a network is timed with
several shares of the channels of every layer, and a share of the time becomes a share of the multiply-adds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.copies import evaluation_copy
from ..channels.record import without_cache
from ..channels.resize import changed_sizes, resize, restated_in
from .channel_table import ChannelTable

SHARES = tuple(eighths / 8 for eighths in range(8, 0, -1))
"""The shares of the channels that are tried."""
ROUNDS = 7
"""How often each size is timed. The shortest time counts: other programs only make a call slower."""


@dataclass(frozen=True)
class LatencyCurve:
    """Shares of the multiply-adds and of the time, both of the whole network, from (1, 1) down.

    Args:
        points: pairs of the two shares; both fall.
        milliseconds: the time of a call of the whole network.
    """

    points: tuple[tuple[float, float], ...]
    milliseconds: float

    def share_for(self, latency: float) -> float:
        """The largest share of the multiply-adds that takes at most a share of the time."""
        if latency < self.points[-1][1]:
            raise ValueError(
                f"target='latency': a call takes {self.points[-1][1]:.0%} of its time even with an eighth of the "
                f"channels of every layer, but {latency:.0%} are asked for. Lower the sparsity"
            )
        for (share, time_of), (below, time_below) in pairwise(self.points):
            if time_below <= latency < time_of:
                return below + (share - below) * (latency - time_below) / (time_of - time_below)
        return 1.0

    def latency_of(self, share: float) -> float:
        """The share of the time that a share of the multiply-adds takes."""
        for (above, time_of), (below, time_below) in pairwise(self.points):
            if below <= share:
                return time_below + (time_of - time_below) * (share - below) / max(above - below, 1e-12)
        return self.points[-1][1]

    def saved(self) -> str:
        return json.dumps([self.milliseconds, self.points])

    @classmethod
    def loaded(cls, text: str) -> LatencyCurve:
        """A curve from the state of a pruner, which may be damaged."""
        try:
            milliseconds, points = json.loads(text)
            read = tuple((float(share), float(latency)) for share, latency in points)
            valid = read[0] == (1, 1) and all(0 <= each <= 1 for point in read for each in point)
            valid = valid and all(a[0] >= b[0] and a[1] >= b[1] for a, b in pairwise(read))
        except (ValueError, TypeError, IndexError, RecursionError):
            valid = False
        if not valid:
            raise ValueError("`units` of the state is not a measured latency")
        return cls(read, float(milliseconds))


@torch.no_grad()
def measure_latency(
    model: nn.Module, table: ChannelTable, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> LatencyCurve:
    """Time a network in evaluation mode with several shares of the channels of every layer.

    On several ranks all of them use the times of the first.
    """
    graph, copies, shares = table.graph, list[nn.Module](), list[float]()
    total = graph.multiply_adds()
    for share in SHARES:
        kept = ~_removed(table, share)
        copies.append(network := evaluation_copy(model))
        attributes = restated_in(network, changed_sizes(graph, kept), table.follows)
        resize(network, graph.remainder(kept), attributes, graph.narrowed(kept))
        shares.append(graph.multiply_adds(kept) / max(1, total))
    times = [math.inf] * len(copies)
    for _ in range(ROUNDS):
        for number, network in enumerate(copies):
            with without_cache(network):
                times[number] = min(times[number], _time_of(network, args, kwargs))
    times = _of_first_rank(times)
    points, best = list[tuple[float, float]](), 1.0
    for share, each in zip(shares, times, strict=True):
        best = min(best, each / times[0])  # a smaller network is never slower by more than noise
        points.append((share, best))
    return LatencyCurve(tuple(points), 1000 * times[0])


def _removed(table: ChannelTable, share: float) -> Tensor:
    """Flags of the sets that go if every family keeps a share of its units, and at least one."""
    members: dict[int, list[int]] = {}
    for unit, family in enumerate(table.families):
        members.setdefault(family, []).append(unit)
    gone = torch.zeros(table.units + 1, dtype=torch.bool)
    for units in members.values():
        gone[units[max(1, round(share * len(units))) :]] = True
    return gone[table.numbers]


def _time_of(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    network(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _of_first_rank(times: list[float]) -> list[float]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        shared = [times]
        torch.distributed.broadcast_object_list(shared, src=0)
        return shared[0]
    return times

"""Units: what is pruned as one: a weight, a kernel, a block, a channel, or N of M. A criterion scores single weights
and knows nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..weights import Weight
from .base import Ranking, Units
from .blocks import BlockUnits
from .budgets import SHARES, TITLES
from .channels import ChannelUnits
from .dead import DeadFirst, DeadWeights
from .granularity import Granularity, GranularityChoice, Reduction, Target, as_granularity
from .patterns import PatternUnits
from .pools import PooledUnits

__all__ = [
    "SHARES",
    "TITLES",
    "DeadFirst",
    "DeadWeights",
    "Granularity",
    "GranularityChoice",
    "PooledUnits",
    "Ranking",
    "Reduction",
    "Target",
    "Units",
    "as_granularity",
    "units_for",
]


def units_for(granularity: Granularity, weights: Sequence[Weight], sparsity: float | None, *, per_layer: bool) -> Units:
    """The units of a pruner. `sparsity` is that of its schedule; None if it depends on the training."""
    if granularity.kind == "weight":
        return Units()
    if sharded := [weight.name for weight in weights if weight.view.key is not None]:
        raise ValueError(
            f"granularity={str(granularity)!r} is incompatible with sharded weights (DTensor), such as {sharded[0]}: "
            "use granularity='weight', or train with DistributedDataParallel"
        )
    if granularity.kind == "pattern":
        return PatternUnits(weights, granularity, sparsity)
    if granularity.kind == "channel":
        return ChannelUnits(weights, granularity, per_layer=per_layer)
    return BlockUnits(weights, granularity, per_layer=per_layer)

"""The units of a pruner, from its setting and its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schedules import AtThreshold
from .block_choice import BlockChoice
from .channel_choice import ChannelChoice
from .granularity_setting import Granularity
from .pattern_choice import PatternChoice
from .unit_choice import UnitChoice

if TYPE_CHECKING:
    from ..pruning_event import PruningEvent


def units_for(granularity: Granularity, pruner: PruningEvent) -> UnitChoice | None:
    """The units of a pruner; None for single weights."""
    if granularity.kind == "weight":
        return None
    _refuse(granularity, pruner)
    if granularity.kind == "pattern":
        sparsity = None if isinstance(pruner.schedule, AtThreshold) else pruner.schedule.sparsity
        return PatternChoice(pruner.layers, granularity, sparsity)
    if granularity.kind == "channel":
        return ChannelChoice(pruner.layers, granularity, per_layer=pruner.scope == "layer")
    return BlockChoice(pruner.layers, granularity, per_layer=pruner.scope == "layer")


def _refuse(granularity: Granularity, pruner: PruningEvent) -> None:
    """Refuse what cannot be combined with units."""
    asked, method = f"granularity={str(granularity)!r}", type(pruner)
    if method.chooses_single_weights():
        raise ValueError(
            f"{method.__name__} does not take {asked}: it chooses single weights to prune and to grow. Use a method "
            "that prunes by a criterion, such as FlipOut or GlobalMagnitude"
        )
    if sharded := [layer.name for layer in pruner.layers if layer.part is not None]:
        raise ValueError(
            f"{asked} does not support sharded weights (DTensor), such as {sharded[0]}: use granularity='weight', or "
            "train with DistributedDataParallel"
        )
    if granularity.kind == "pattern" and pruner.dead_weights is not None:
        raise ValueError(f"dead_first has no effect with {asked}, which fixes how many weights stay: leave it out")
    if granularity.kind == "channel" and pruner.dead_weights is not None:
        raise ValueError(
            f"dead_first has no effect with {asked}, because a channel goes with all weights that write or read it: "
            "leave it out"
        )

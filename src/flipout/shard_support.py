"""What cannot be done with sharded weights, refused when a pruner is attached."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .pruner import Pruner


def refuse_old_sharding(model: nn.Module) -> None:
    """Refuse a model in `FullyShardedDataParallel` (FSDP1), which hides its weights in flat parameters."""
    module = sys.modules.get("torch.distributed.fsdp")
    if module is None:
        return
    if any(isinstance(part, module.FullyShardedDataParallel) for part in model.modules()):
        raise ValueError(
            "the model is wrapped in FullyShardedDataParallel (FSDP1), which keeps its weights in flat parameters that "
            "cannot be pruned: use torch.distributed.fsdp.fully_shard (FSDP2) instead, before you create the optimizer"
        )


def refuse_example_on_shards(pruner: Pruner) -> None:
    """Refuse to follow an example through a network of which a rank holds a part."""
    if any(pruner.pieces):
        raise ValueError(
            "summary(example_input) does not work with sharded weights: gather the weights into an ordinary model, and "
            "use flipout.export.effective_sparsity, or call summary() without an example"
        )


def refuse_on_shards(pruner: Pruner) -> None:
    """Refuse a method or an option that needs whole weights, if weights are sharded."""
    sharded = [layer for layer in pruner.layers if layer.part is not None]
    if not sharded:
        return
    where = f"sharded weights (DTensors of FSDP2 or tensor parallelism, such as {sharded[0].name})"
    if reason := pruner.refuses_shards:
        raise ValueError(f"{type(pruner).__name__} does not work with {where}: {reason}")
    if pruner.dead_weights is not None:
        raise ValueError(
            f"dead_first=True does not work with {where}, because it follows paths through whole weights: leave it out"
        )
    for layer in sharded:
        for key, statistic in layer.statistics.items():
            if odd := [part for part, state in statistic.elements.items() if state.shape != layer.local.shape]:
                raise ValueError(
                    f"the statistic {key!r} does not work with {where}: its state {', '.join(odd)} does not have the "
                    "shape of the weight. Keep one number for each weight, or name what belongs to the whole weight "
                    "in `shared`, and compute it equally on every rank"
                )

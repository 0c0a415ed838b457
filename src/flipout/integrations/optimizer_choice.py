"""Which of several optimizers a pruner is attached to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..weights import Patterns, select_weights


def choose_optimizer(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    index: int | None,
    include: Patterns | None,
    exclude: Patterns | None,
) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """The optimizer that holds the weights to prune, and further options for the pruner.

    With an index, only weights of that optimizer are pruned. Without one, a single optimizer must hold all of them.
    """
    if not optimizers:
        raise ValueError("there is no optimizer to attach a pruner to: configure_optimizers() returns none")
    if index is None and len(optimizers) == 1:
        return optimizers[0], {}
    weights = select_weights(model, include, exclude)
    held = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    if index is None:
        holding = [number for number, ids in enumerate(held) if all(id(weight) in ids for _, weight in weights)]
        if len(holding) != 1:
            raise ValueError(_several(held, weights))
        return optimizers[holding[0]], {}
    if not 0 <= index < len(optimizers):
        raise ValueError(f"optimizer is {index}; there are {len(optimizers)} optimizers, numbered from 0")
    names = {name for name, weight in weights if id(weight) in held[index]}
    if not names:
        raise ValueError(f"optimizer {index} holds none of the weights to prune; choose another one, or use include=")
    return optimizers[index], {"include": sorted(names), "exclude": None}


def _several(held: list[set[int]], weights: list[tuple[str, nn.Parameter]]) -> str:
    counts = ", ".join(
        f"optimizer {number} holds {sum(id(weight) in ids for _, weight in weights)} of them"
        for number, ids in enumerate(held)
    )
    return (
        f"there are {len(held)} optimizers and {len(weights)} weights to prune: {counts}. Choose one with optimizer=, "
        "or its weights with include= or exclude=. To prune the weights of several optimizers, use a callback for each"
    )

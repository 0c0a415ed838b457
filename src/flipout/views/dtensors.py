"""DTensors and ordinary tensors alike: the plain tensor that a rank holds, and masks for both kinds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor. (Such a tensor exists only after its module was imported, which takes time.)"""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Any) -> Tensor:
    """The shard of a DTensor that this rank holds, in the same memory; an ordinary tensor as it is."""
    if not is_sharded(tensor):
        ordinary: Tensor = tensor
        return ordinary
    with torch.no_grad():
        local: Tensor = tensor.to_local()
    return local


def hint_for_shards(weights: Iterable[Any], optimizer: torch.optim.Optimizer) -> str:
    """What to do if an optimizer does not hold the weights of a sharded model; empty if nothing is sharded."""
    if any(map(is_sharded, weights)):
        return ". Shard the model first (fully_shard, parallelize_module), and create the optimizer after that"
    if any(is_sharded(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        return ". FSDP2 has left gathered weights in the model: call reshard() on it before you attach a pruner"
    return ""


def align_gradient(weight: Any) -> None:
    """Give the gradient of a DTensor the layout of the weight. Tensor parallelism may leave sums to be completed."""
    grad = weight.grad
    if grad is not None and is_sharded(weight) and is_sharded(grad) and grad.placements != weight.placements:
        weight.grad = grad.redistribute(weight.device_mesh, weight.placements)


def has_layout_of(weight: Any, tensor: Any) -> bool:
    """Whether a tensor has its elements where a weight has them: both ordinary, or DTensors of the same layout.

    A sum that is not completed yet (a partial gradient of a replicated weight) counts as well: its terms have the shape
    of the weight.
    """
    if not is_sharded(weight) or not is_sharded(tensor):
        return is_sharded(weight) == is_sharded(tensor)
    return all(
        here == there or (here.is_replicate() and there.is_partial())
        for here, there in zip(weight.placements, tensor.placements, strict=True)
    )


def refuse_old_sharding(modules: Iterable[torch.nn.Module]) -> None:
    """Refuse a model in `FullyShardedDataParallel` (FSDP1), which hides its weights in flat parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in modules):
        raise ValueError(
            "the model is wrapped in FullyShardedDataParallel (FSDP1), which keeps its weights in flat parameters that "
            "cannot be pruned: use torch.distributed.fsdp.fully_shard (FSDP2) instead, before you create the optimizer"
        )

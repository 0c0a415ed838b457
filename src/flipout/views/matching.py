"""A mask and a tensor that it is compared with or applied to, each of them sharded or not."""

from __future__ import annotations

import torch
from torch import Tensor

from .dtensors import is_sharded, local_of
from .shard import Shard


def common_elements(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What this rank holds of a tensor and a mask of the same shape: the same elements of both.

    Nothing is exchanged if they have the same layout, or one of them is whole.
    """
    if is_sharded(mask):
        return Shard(mask, "the mask").take(tensor), local_of(mask)
    if is_sharded(tensor):
        return local_of(tensor), Shard(tensor, "the weight").take(mask)
    return tensor, mask


@torch.no_grad()
def zero_where_pruned(tensor: Tensor, mask: Tensor) -> None:
    """Zero a tensor in place where a mask is False. A sharded mask for a tensor that is whole, or sharded in another
    way, is gathered: all ranks must call this together."""
    if is_sharded(mask) and not (is_sharded(tensor) and _alike(tensor, mask)):
        mask = gathered(mask)
    if is_sharded(tensor) and not is_sharded(mask):
        mask = Shard(tensor, "the weight").take(mask)
    tensor, mask = local_of(tensor), local_of(mask)
    tensor.masked_fill_(~mask.to(tensor.device), 0)


def gathered(tensor: Tensor) -> Tensor:
    """A whole tensor; all ranks of a sharded one must call this together."""
    return Shard(tensor, "the tensor").gather(local_of(tensor)) if is_sharded(tensor) else tensor


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool(one.device_mesh == other.device_mesh and one.placements == other.placements)  # type: ignore[attr-defined]

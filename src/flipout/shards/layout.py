"""Which elements of a DTensor a rank holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..positions import Positions


def positions_of(weight: Any, name: str) -> Positions:
    """The elements of a DTensor that this rank holds. `name` is for the error of a layout that is not known."""
    indices: list[Tensor | None] = []
    for dimension, size in enumerate(weight.shape):
        held = torch.arange(size, device="cpu")
        for mesh_dimension in _order(weight.placements, dimension):
            parts = held.tensor_split(_ends(len(held), weight.device_mesh.size(mesh_dimension)))
            held = parts[weight.device_mesh.get_coordinate()[mesh_dimension]]
        indices.append(None if len(held) == size else held)
    positions = Positions(torch.Size(weight.shape), tuple(indices))
    if positions.part != weight.to_local().shape or any(map(_is_unknown, weight.placements)):
        raise ValueError(
            f"{name} is a DTensor with the layout {weight.placements}, which is not supported: pruning needs Shard and "
            "Replicate, or FSDP2 together with tensor parallelism. Use such a layout, or leave the weight out with "
            "exclude="
        )
    return positions


def sharding_dimensions(weight: Any) -> tuple[int, ...]:
    """The dimensions of the mesh over which the elements of a DTensor are spread. Over the others it is replicated."""
    return tuple(number for number, placement in enumerate(weight.placements) if _dimension_of(placement) is not None)


def spreading_dimensions(weight: Any) -> tuple[int, ...]:
    """The dimensions of the mesh over which a row is spread: everything under one index of the first
    dimension. A vector is one row."""
    dimensions = [_dimension_of(placement) for placement in weight.placements]
    return tuple(
        number for number, split in enumerate(dimensions) if split is not None and (split or len(weight.shape) < 2)
    )


def _order(placements: Any, dimension: int) -> list[int]:
    """The mesh dimensions that split a dimension of the tensor, in the order in which they do.

    FSDP2 splits what tensor parallelism has already split, although its mesh dimension comes first: `_StridedShard`.
    """
    splitting = [number for number, placement in enumerate(placements) if _dimension_of(placement) == dimension]
    return sorted(splitting, key=lambda number: type(placements[number]).__name__ == "_StridedShard")


def _ends(size: int, parts: int) -> list[int]:
    """Where the parts of a dimension end, as `torch.chunk` cuts it: the last ones may be shorter, or empty."""
    step = -(-size // parts)
    return [min(size, step * number) for number in range(1, parts)]


def _dimension_of(placement: Any) -> int | None:
    """The dimension of the tensor that a placement splits; None if it splits none."""
    dimension: int | None = getattr(placement, "dim", None)
    return dimension


def _is_unknown(placement: Any) -> bool:
    return type(placement).__name__ not in ("Shard", "_StridedShard", "Replicate")

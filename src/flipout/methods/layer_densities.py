"""How many weights each layer of a sparse network keeps, from the shapes of the layers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence


def erdos_renyi_kernel(shapes: Sequence[Sequence[int]], keep: int, floors: Sequence[int]) -> list[int]:
    """Split `keep` over layers so that their densities are proportional to `sum(shape) / prod(shape)`.

    This is the Erdos-Renyi-kernel distribution (Mocanu et al., 2018; Evci et al., 2020). Each layer keeps
    `round(t * sum(shape))` weights, with the same `t` for all, but at least its floor and at most all of its weights.
    The parts add up exactly: if several layers gain their next weight at the same `t`, the first ones do.
    """
    sizes = [math.prod(shape) for shape in shapes]
    sides = [max(1, sum(shape)) for shape in shapes]
    if not sum(map(min, floors, sizes)) <= keep <= sum(sizes):
        raise ValueError(f"cannot keep {keep} of {sum(sizes)} weights with the floors {list(floors)}")

    def kept(t: float) -> list[int]:
        return [
            min(max(int(t * side + 0.5), floor), size) for side, size, floor in zip(sides, sizes, floors, strict=True)
        ]

    low, high = 0.0, max(size / side for size, side in zip(sizes, sides, strict=True)) + 1
    while low < (middle := (low + high) / 2) < high:
        if sum(kept(middle)) <= keep:
            low = middle
        else:
            high = middle
    result = kept(low)
    missing = keep - sum(result)
    for i, upper in enumerate(kept(high)):
        step = min(missing, upper - result[i])
        result[i] += step
        missing -= step
    return result

"""The Erdos-Renyi-kernel distribution: exact, bounded, and proportional where nothing bounds it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipout.methods.regrowth import erdos_renyi_kernel

SHAPES = st.lists(st.lists(st.integers(0, 12), max_size=4).map(tuple), min_size=1, max_size=6)


@given(SHAPES, st.floats(0, 1), st.integers(0, 5))
def test_the_parts_are_exact_and_within_their_bounds(shapes: list[tuple[int, ...]], share: float, floor: int) -> None:
    sizes = [math.prod(shape) for shape in shapes]
    floors = [min(floor, size) for size in sizes]
    keep = max(sum(floors), round(share * sum(sizes)))
    parts = erdos_renyi_kernel(shapes, keep, floors)
    assert sum(parts) == keep
    assert all(least <= part <= size for least, part, size in zip(floors, parts, sizes, strict=True))
    free = [
        part / max(1, sum(shape))
        for part, least, size, shape in zip(parts, floors, sizes, shapes, strict=True)
        if least < part < size
    ]
    margins = [1 / max(1, sum(shape)) for shape in shapes]
    assert not free or max(free) - min(free) <= 2 * max(margins)  # the same number for each unit of their sides


def test_the_densities_of_lenet() -> None:
    """784 + 300, 300 + 100 and 100 + 10 sides share the weights. When a layer is full, the others share the rest."""
    shapes = [(300, 784), (100, 300), (10, 100)]
    assert erdos_renyi_kernel(shapes, 2662, [0, 0, 0]) == [1810, 668, 184]
    assert erdos_renyi_kernel(shapes, 26_620, [0, 0, 0]) == [18_714, 6906, 1000]


def test_impossible_counts() -> None:
    with pytest.raises(ValueError, match="13 of 12 weights"):
        erdos_renyi_kernel([(3, 4)], 13, [0])
    with pytest.raises(ValueError, match="3 of 12 weights"):
        erdos_renyi_kernel([(3, 4)], 3, [4])

"""Blocks of a weight, against loops over its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flipout.units.block_layout import BlockLayout

LAYOUTS = st.builds(
    BlockLayout,
    st.one_of(st.tuples(*[st.integers(1, 7)] * 2), st.tuples(*[st.integers(1, 4)] * 4)),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
)


def blocks(layout: BlockLayout, tensor: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    matrix = (tensor.transpose(0, 1) if layout.inputs_first else tensor).flatten(1)
    for i in range(0, len(matrix), layout.rows):
        for j in range(0, matrix.shape[1], layout.columns):
            yield i // layout.rows, j // layout.columns, matrix[i : i + layout.rows, j : j + layout.columns]


@given(LAYOUTS, st.sampled_from(["mean", "sum", "norm"]))
def test_scores_of_blocks(layout: BlockLayout, how: Literal["mean", "sum", "norm"]) -> None:
    scores = torch.randn(layout.shape)
    grid = layout.reduced(scores, how)
    assert grid.shape == layout.grid
    for i, j, block in blocks(layout, scores):
        expected = {"mean": block.mean(), "sum": block.sum(), "norm": block.norm()}[how]
        torch.testing.assert_close(grid[i, j], expected)


@given(LAYOUTS)
def test_marks_of_blocks_become_marks_of_weights_and_back(layout: BlockLayout) -> None:
    grid = torch.rand(layout.grid) < 0.5
    marks = layout.expand(grid)
    assert marks.shape == layout.shape
    assert torch.equal(layout.units_of(marks), grid)
    for i, j, block in blocks(layout, marks):
        assert (block == grid[i, j]).all()


@given(LAYOUTS)
def test_regions_cover_the_grid_once_with_the_right_sizes(layout: BlockLayout) -> None:
    sizes = torch.zeros(layout.grid, dtype=torch.int64)
    for region in layout.regions():
        assert not sizes[region.rows, region.columns].any()
        sizes[region.rows, region.columns] = region.size
    assert int(sizes.sum()) == math.prod(layout.shape)
    for i, j, block in blocks(layout, torch.zeros(layout.shape)):
        assert sizes[i, j] == block.numel()


@given(LAYOUTS)
def test_a_block_is_dead_if_all_its_kept_weights_are(layout: BlockLayout) -> None:
    mask = layout.expand(torch.rand(layout.grid) < 0.7)
    dead = mask & (torch.rand(layout.shape) < 0.8)
    marks = layout.dead_units(dead, mask)
    pairs = zip(blocks(layout, dead), blocks(layout, mask), strict=True)
    for (i, j, gone), (_, _, kept) in pairs:
        assert marks[i, j] == bool(kept.any() and (gone == kept).all())

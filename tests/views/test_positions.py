"""Parts of a tensor compute exactly their own part of what the whole tensor would."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipout.positions import Positions
from flipout.random_numbers import normal, uniform


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """A shape, and for each dimension some of its indices, narrowed in two steps."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    return shape, [sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))) for size in shape]


@settings(max_examples=100, deadline=None)
@given(parts(), st.integers(0, 2**32))
def test_a_part_has_the_numbers_that_it_has_in_the_whole(part: tuple[list[int], list[list[int]]], seed: int) -> None:
    shape, kept = torch.Size(part[0]), part[1]
    where = Positions.all_of(shape)
    assert where.whole
    every = torch.arange(shape.numel()).view(shape)
    noise = normal(shape, seed=seed, step=3, tensor=2)
    drawn = uniform(shape, seed=seed, step=3, tensor=2)
    for dimension, indices in enumerate(kept):
        index = torch.tensor(indices)
        where = where.narrow(dimension, index)
        every, noise, drawn = (tensor.index_select(dimension, index) for tensor in (every, noise, drawn))
    assert where.held == every.shape
    assert torch.equal(where.elements(), every)
    assert torch.equal(normal(where, seed=seed, step=3, tensor=2), noise)
    assert torch.equal(uniform(where, seed=seed, step=3, tensor=2), drawn)


def test_a_part_is_narrowed_by_places_within_it() -> None:
    where = Positions.all_of(torch.Size([8, 2])).narrow(0, torch.tensor([1, 4, 6])).narrow(0, torch.tensor([0, 2]))
    assert where.elements().tolist() == [[2, 3], [12, 13]]
    assert not where.whole


def test_numbers_beyond_32_bits_wrap_around() -> None:
    where = (
        Positions.all_of(torch.Size([1 << 20, 1 << 14])).narrow(0, torch.tensor([1 << 18])).narrow(1, torch.arange(3))
    )
    assert where.elements().tolist() == [[1 << 32, (1 << 32) + 1, (1 << 32) + 2]]
    assert (where.starts().view(-1, 1) + where.offsets()).tolist() == [[0, 1, 2]]

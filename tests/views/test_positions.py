"""What is left of a tensor has exactly the numbers that it has in the whole."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flipout.random_numbers import normal, uniform
from flipout.views.positions import Positions


@st.composite
def places(draw: st.DrawFn) -> tuple[torch.Size, list[torch.Tensor]]:
    """A shape, and for each dimension some of its indices."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    kept = [sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))) for size in shape]
    return torch.Size(shape), [torch.tensor(indices) for indices in kept]


@given(places(), st.integers(0, 2**32))
def test_what_is_left_has_the_numbers_that_it_has_in_the_whole(
    place: tuple[torch.Size, list[torch.Tensor]], seed: int
) -> None:
    shape, indices = place
    assert Positions.all_of(shape).whole
    where = Positions(shape, tuple(indices))
    every = torch.arange(shape.numel()).view(shape)
    noise = normal(shape, seed=seed, step=3, tensor=2)
    drawn = uniform(shape, seed=seed, step=3, tensor=2)
    for dimension, index in enumerate(indices):
        every, noise, drawn = (tensor.index_select(dimension, index) for tensor in (every, noise, drawn))
    assert where.held == every.shape
    assert torch.equal(where.elements(), every)
    assert torch.equal(normal(where, seed=seed, step=3, tensor=2), noise)
    assert torch.equal(uniform(where, seed=seed, step=3, tensor=2), drawn)


def test_some_indices_and_all_of_the_others() -> None:
    where = Positions(torch.Size([8, 2]), (torch.tensor([1, 6]), None))
    assert where.elements().tolist() == [[2, 3], [12, 13]]
    assert where.held == (2, 2)
    assert not where.whole


def test_numbers_beyond_32_bits_wrap_around() -> None:
    where = Positions(torch.Size([1 << 20, 1 << 14]), (torch.tensor([1 << 18]), torch.arange(3)))
    assert where.elements().tolist() == [[1 << 32, (1 << 32) + 1, (1 << 32) + 2]]
    assert (where.starts().view(-1, 1) + where.offsets()).tolist() == [[0, 1, 2]]

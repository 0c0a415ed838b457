"""Cuts of tensors, against plain indexing and slow loops."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.shrinking.network_cut import replace_values
from flipout.views import Positions
from flipout.views.cut import Cut, put, take


@st.composite
def positions(draw: st.DrawFn) -> tuple[Tensor, Positions]:
    """A tensor of one to four dimensions, and some indices of each."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    indices = []
    for size in shape:
        kept = draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted))
        indices.append(None if kept is None else torch.tensor(kept))
    full = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return full, Positions(full.shape, tuple(indices))


@given(positions())
def test_elements_are_taken_and_put_back(case: tuple[Tensor, Positions]) -> None:
    full, where = case
    elements = where.elements().flatten()
    held = take(full, where)
    assert torch.equal(held.flatten(), full.flatten()[elements])
    target, expected = torch.zeros_like(full), torch.zeros(full.numel())
    put(target, held, where)
    expected[elements] = held.flatten()
    assert torch.equal(target.flatten(), expected)


@given(positions())
def test_a_cut_takes_what_is_left_and_gathers_it_among_zeros(case: tuple[Tensor, Positions]) -> None:
    full, where = case
    cut = Cut(where)
    local = cut.take(full)
    elements = where.elements().flatten()
    expected = torch.zeros(full.numel())
    expected[elements] = full.flatten()[elements]
    assert cut.size == full.numel()
    assert torch.equal(cut.gather(local).flatten(), expected)
    assert torch.equal(cut.take(cut.gather(local)), local)


def test_channels_last_stays_channels_last() -> None:
    full = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    held = take(full, Positions(full.shape, (torch.tensor([1, 3]), torch.tensor([0, 2, 3]), None, None)))
    assert held.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(held, full[[1, 3]][:, [0, 2, 3]])


def test_a_parameter_takes_another_shape_while_an_old_loss_is_alive() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(2, 3)
    weight, loss = layer.weight, layer(x).sum()
    loss.backward()
    replace_values(layer.weight, layer.weight.detach()[:2].clone())
    replace_values(layer.bias, layer.bias.detach()[:2].clone())
    layer(x).sum().backward()
    assert weight is layer.weight
    assert weight.grad is not None
    assert weight.grad.shape == (2, 3)
    assert float(loss.detach())

"""Parts of tensors, against plain indexing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.positions import ListedPositions, Positions
from flipout.random_numbers import normal
from flipout.shrinking.tensor_parts import elements_outside, put, put_elements, replace_values, take, take_elements


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Tensor, Positions]:
    """A tensor of one to four dimensions, and some indices of each."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    indices = []
    for size in shape:
        kept = draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted))
        indices.append(None if kept is None else torch.tensor(kept))
    full = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return full, Positions(full.shape, tuple(indices))


@settings(deadline=None)
@given(cuts())
def test_a_part_is_taken_and_put_back(cut: tuple[Tensor, Positions]) -> None:
    full, where = cut
    elements = where.elements().flatten()
    part = take(full, where)
    assert torch.equal(part.flatten(), full.flatten()[elements])
    target, expected = torch.zeros_like(full), torch.zeros(full.numel())
    put(target, part, where)
    expected[elements] = part.flatten()
    assert torch.equal(target.flatten(), expected)


@settings(deadline=None)
@given(cuts(), st.floats(0, 1))
def test_kept_elements_outside_of_a_part(cut: tuple[Tensor, Positions], share: float) -> None:
    full, where = cut
    mask = torch.rand(full.shape, generator=torch.Generator().manual_seed(1)) < share
    inside = set(where.elements().flatten().tolist())
    kept = mask.flatten().nonzero().flatten().tolist()
    elements = elements_outside(mask, where)
    assert elements.tolist() == [number for number in kept if number not in inside]
    target = torch.zeros_like(full)
    put_elements(target, take_elements(full, elements), elements)
    assert torch.equal(target.flatten()[elements], full.flatten()[elements])
    assert torch.count_nonzero(target) <= len(elements)


@settings(deadline=None)
@given(cuts())
def test_listed_elements_have_the_random_numbers_of_the_whole(cut: tuple[Tensor, Positions]) -> None:
    full, where = cut
    elements = where.elements().flatten()
    listed = ListedPositions.of(full.shape, elements)
    drawn = normal(listed, seed=1, step=2, tensor=3)
    assert torch.equal(drawn, normal(full.shape, seed=1, step=2, tensor=3).flatten()[elements])
    assert not listed.whole
    assert torch.equal(listed.narrow(0, torch.tensor([0])).elements(), elements[:1])


def test_channels_last_stays_channels_last() -> None:
    full = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    part = take(full, Positions(full.shape, (torch.tensor([1, 3]), torch.tensor([0, 2, 3]), None, None)))
    assert part.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(part, full[[1, 3]][:, [0, 2, 3]])


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

"""Cuts of tensors, against plain indexing and slow loops."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.random_numbers import normal
from flipout.shrinking.network_cut import replace_values
from flipout.views import Listed, Positions
from flipout.views.cut import Cut, elements_outside, put, put_elements, take, take_elements


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


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Tensor, Cut]:
    """A tensor, and a cut of it that sets some of the removed elements aside."""
    full, left = draw(positions())
    mask = torch.rand(full.shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))) < draw(
        st.sampled_from([0.0, 0.3, 1.0])
    )
    return full, Cut(full.shape, left.indices, elements_outside(mask, left))


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


@given(positions(), st.floats(0, 1))
def test_kept_elements_outside(case: tuple[Tensor, Positions], share: float) -> None:
    full, where = case
    mask = torch.rand(full.shape, generator=torch.Generator().manual_seed(1)) < share
    inside = set(where.elements().flatten().tolist())
    kept = mask.flatten().nonzero().flatten().tolist()
    elements = elements_outside(mask, where)
    assert elements.tolist() == [number for number in kept if number not in inside]
    target = torch.zeros_like(full)
    put_elements(target, take_elements(full, elements), elements)
    assert torch.equal(target.flatten()[elements], full.flatten()[elements])
    assert torch.count_nonzero(target) <= len(elements)


@given(positions())
def test_listed_elements_have_the_random_numbers_of_the_whole(case: tuple[Tensor, Positions]) -> None:
    full, where = case
    elements = where.elements().flatten()
    listed = Listed.of(full.shape, elements)
    drawn = normal(listed, seed=1, step=2, tensor=3)
    assert torch.equal(drawn, normal(full.shape, seed=1, step=2, tensor=3).flatten()[elements])
    assert not listed.whole


def slow_numbers(cut: Cut) -> list[int]:
    """The numbers of all elements that are here, one after the other."""
    inside = cut.left.elements().flatten().tolist()
    return sorted([*inside, *cut.elements_aside.tolist()]) if not cut.direct else inside


@given(cuts())
def test_a_cut_holds_what_is_left_and_what_is_set_aside_in_the_original_order(case: tuple[Tensor, Cut]) -> None:
    full, cut = case
    numbers = slow_numbers(cut)
    assert cut.elements().flatten().tolist() == numbers
    assert cut.size == full.numel()
    assert cut.take(full).flatten().tolist() == [full.flatten()[number].item() for number in numbers]


@given(cuts())
def test_what_is_gathered_has_zeros_where_elements_were_removed(case: tuple[Tensor, Cut]) -> None:
    full, cut = case
    expected = torch.zeros(full.numel())
    for number in slow_numbers(cut):
        expected[number] = full.flatten()[number]
    local = cut.take(full)
    assert torch.equal(cut.gather(local).flatten(), expected)
    assert torch.equal(cut.take(cut.gather(local)), local)
    target = full.clone()
    cut.write(target, -local)
    assert torch.equal(target.flatten(), full.flatten() - 2 * expected)


@given(cuts())
def test_what_is_in_the_network_and_what_is_set_aside_are_joined_again(case: tuple[Tensor, Cut]) -> None:
    full, cut = case
    local = cut.take(full)
    network = cut.in_network(local)
    assert torch.equal(network, take(full, cut.left))
    assert torch.equal(cut.shown(local), network)
    assert torch.equal(cut.merged(network, local), local)
    if not cut.direct:
        aside = cut.set_aside(local)
        assert torch.equal(aside, take_elements(full, cut.elements_aside))
        assert torch.equal(cut.joined(network, aside), local)


@given(cuts())
def test_values_and_gradients_are_put_where_they_are_read(case: tuple[Tensor, Cut]) -> None:
    full, cut = case
    parameter = nn.Parameter(take(full, cut.left).clone())
    if not cut.direct:
        cut.aside = nn.Parameter(take_elements(full, cut.elements_aside))
    local = cut.take(full)
    assert torch.equal(cut.local(parameter), local)
    before = cut.version(parameter)
    with torch.no_grad():
        for holder, _ in cut.holders(parameter, local):
            holder.neg_()
    assert cut.version(parameter) != before
    assert torch.equal(cut.local(parameter), -local)
    cut.put(parameter, local)
    assert torch.equal(cut.local(parameter), local)
    assert cut.grad(parameter) is None
    parameter.grad = torch.ones_like(parameter)
    cut.prepare(parameter)
    inside = set(cut.left.elements().flatten().tolist())
    grad = cut.grad(parameter)
    assert grad is not None
    assert grad.flatten().tolist() == [float(number in inside) for number in slow_numbers(cut)]
    cut.put_grad(parameter, local)
    assert torch.equal(cut.grad(parameter), local)  # type: ignore[arg-type]


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

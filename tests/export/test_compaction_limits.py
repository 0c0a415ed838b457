"""Compaction of networks with optional arguments, hooks, in-place operations and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from flipout.export import accelerate, compact
from tests.channels.networks import randomize
from tests.export.helpers import assert_same, notes_of, outputs, zero


class Net(nn.Module):
    """Two layers, with any function between them."""

    shift: nn.Parameter

    def __init__(self, between: Callable[..., Any], width: int = 8, **parameters: Tensor) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.between = between
        for name, tensor in parameters.items():
            self.register_parameter(name, nn.Parameter(tensor))
        randomize(self, 0)
        zero(self.first, [0, 1])
        self.eval().double()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self, self.first(x)))


def clamped_in_place(net: Net, y: Tensor) -> Tensor:
    torch.clamp_(y, -2, 2)
    return y


def changed_twice(net: Net, y: Tensor) -> Tensor:
    functional.relu_(y)
    y.add_(1)
    return y * y


def decided_by_size(net: Net, y: Tensor) -> Tensor:
    return y.relu() if y.shape[1] > 2 and y.dim() == 2 else y


@pytest.mark.parametrize("between", [clamped_in_place, changed_twice, decided_by_size])
def test_in_place_functions_and_decisions_by_size(between: Callable[..., Tensor]) -> None:
    net = Net(between)
    small = compact(net, torch.randn(1, 4).double())
    assert_same(net, small, 10 * torch.randn(5, 4).double())
    assert notes_of(small) == []
    assert outputs(small) == [6, 3]


class Optional(nn.Module):
    """Takes an argument that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: float | None = None, *, double: bool = False) -> Tensor:
        y = self.first(x).relu()
        if scale is not None:
            y = y * scale
        return self.last(2 * y if double else y)  # type: ignore[no-any-return]


def test_a_note_names_arguments_without_which_constants_were_found() -> None:
    net = randomize(Optional(), 0.5).eval()
    zero(net.first, list(range(7)))  # type: ignore[arg-type]
    small = compact(net, torch.randn(2, 4))
    assert outputs(small) == [1, 3]
    (note,) = notes_of(small)
    assert "scale" in note
    assert "double" in note
    torch.testing.assert_close(small(x=torch.ones(3, 4)), net(torch.ones(3, 4)))


def test_hooks_of_the_network_and_of_containers() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3)).eval()
    zero(net[0][0], [0, 1])  # type: ignore[index]
    seen: list[type] = []
    handle = net[0].register_forward_hook(lambda module, inputs, output: seen.append(type(output)))
    small = compact(net, torch.randn(2, 4))
    assert all(issubclass(each, Tensor) for each in seen)
    torch.testing.assert_close(small(torch.ones(1, 4)), net(torch.ones(1, 4)))
    handle.remove()
    net.register_forward_hook(lambda module, inputs, output: output.clamp(-1e-3, 1e-3))
    small = compact(net, torch.randn(2, 4))
    torch.testing.assert_close(small(torch.ones(1, 4)), net(torch.ones(1, 4)))


class Keeps(nn.Module):
    """Changes its own buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)  # type: ignore[operator]
        return self.last(self.layer(x))  # type: ignore[no-any-return]


def test_a_network_that_changes_itself_still_does() -> None:
    net = Keeps().eval()
    zero(net.last, [], [0, 1])
    small = compact(net, torch.randn(2, 4))
    assert outputs(small) == [4, 2]
    small(torch.randn(2, 4))
    assert small.count > net.count  # type: ignore[operator]


class Particular(nn.Module):
    """Rejects negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Linear(4, 8), nn.Linear(8, 3), nn.Embedding(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu()) + self.table((1.5 * x[:, 0]).floor().long())  # type: ignore[no-any-return]


def test_the_network_may_reject_random_numbers() -> None:
    net = randomize(Particular(), 0).eval()
    zero(net.first, [0, 1])  # type: ignore[arg-type]
    small = compact(net, torch.rand(2, 4))
    assert outputs(small) == [6, 3]


def test_attribute_names_that_the_network_uses_already() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.notes, self.choices, self.compaction = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.compaction(self.choices(self.notes(x)).relu())  # type: ignore[no-any-return]

    net = randomize(Named(), 0.9).eval()
    x = torch.randn(2, 4)
    for made in (compact(net, x), accelerate(net, x, repetitions=1)):
        torch.testing.assert_close(made(x), net(x))


@pytest.mark.parametrize("wrong", [[torch.ones(1, 4)], {"x": 1.0}, (torch.ones(1, 4), 3)])
def test_an_example_must_consist_of_tensors(wrong: Any) -> None:
    with pytest.raises(TypeError, match="example_input"):
        compact(nn.Linear(4, 2), wrong)


def test_a_model_that_cannot_be_copied_says_why() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    prune.l1_unstructured(net[0], "weight", 0.5)
    net(torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"prune\.remove"):
        compact(net, torch.ones(1, 4))
    prune.remove(net[0], "weight")
    compact(net, (2 * torch.ones(1, 4)).requires_grad_() * 2)


class CalledSize(nn.Module):
    """Has a layer and an argument with the names of size queries."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, dim: Tensor) -> Tensor:
        y = self.size(x)
        return self.last(2 * y if y.abs().max() > 100 else y)  # type: ignore[no-any-return]


def decided_by_the_batch(net: Net, y: Tensor) -> Tensor:
    return 2 * y if y.shape[0] > 4 or y.size(dim=0) > 4 else y


def test_decisions_by_values_and_by_the_batch_are_not_traced() -> None:
    net = randomize(CalledSize(), 0).eval().double()
    small = compact(net, (torch.randn(2, 4).double(), torch.zeros(2)))
    assert_same(net, small, 1000 * torch.randn(2, 4).double(), torch.zeros(2))
    by_batch = Net(decided_by_the_batch)
    small = compact(by_batch, torch.randn(1, 4).double())
    assert_same(by_batch, small, torch.randn(9, 4).double())


def read_under_another_name(net: Net, y: Tensor) -> Tensor:
    z = y
    z += net.shift
    z **= 2
    width = y.shape[1]
    half = width
    width += 1
    return y * (width - half)


def test_in_place_changes_are_seen_under_every_name() -> None:
    net = Net(read_under_another_name, shift=torch.randn(8))
    small = compact(net, torch.randn(2, 4).double())
    assert_same(net, small, torch.randn(3, 4).double())
    assert not any("nothing was removed" in note for note in notes_of(small))

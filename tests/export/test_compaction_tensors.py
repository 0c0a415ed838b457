"""Compaction of networks with unusual tensors: parameters, constants, dtypes, outputs of any kind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flipout.channels.comparison import describe_difference
from flipout.export import accelerate, compact
from flipout.export.compaction import CompactionReport
from tests.channels.networks import randomize
from tests.export.helpers import assert_same, notes_of, numbers, zero
from tests.export.test_compaction_limits import Net


def with_a_parameter(net: Net, y: Tensor) -> Tensor:
    return functional.gelu(y + net.shift)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_parameter_that_is_added_has_no_batch(rows: int) -> None:
    """Even if its shape is that of the example by accident."""
    net = Net(with_a_parameter, shift=torch.randn(rows, 8))
    small = compact(net, torch.randn(rows, 4).double())
    for batch in {1, 3, rows} if rows == 1 else {rows}:
        assert_same(net, small, torch.randn(batch, 4).double())
    assert_same(net, accelerate(net, torch.randn(rows, 4).double(), repetitions=1), torch.randn(rows, 4).double())


class Prototypes(nn.Module):
    """Compares its input with embedded parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(10, 8))
        self.embed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 8)
        self.gate = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu() * self.gate(self.prototypes[:1])
        out: Tensor = self.last(hidden) @ self.embed(self.prototypes).t()
        return out


def test_layers_that_read_parameters() -> None:
    net = randomize(Prototypes(), 0).eval().double()
    zero(net.first, list(range(10)))  # type: ignore[arg-type]
    zero(net.get_submodule("embed.0"), [3])
    small = compact(net, torch.randn(2, 4).double())
    assert_same(net, small, torch.randn(3, 4).double())
    assert numbers(small) < numbers(net)


class TwoReaders(nn.Module):
    """A sum of which only a constant channel is read; one of its terms is read elsewhere too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 1)
        self.padded, self.other = nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        return torch.cat([self.padded(first + self.b(x)), self.other(first)], 1)


def test_a_sum_of_which_only_a_constant_is_read() -> None:
    net = randomize(TwoReaders(), 0).eval().double()
    zero(net.a, [3])  # type: ignore[arg-type]
    zero(net.b, [3])  # type: ignore[arg-type]
    zero(net.padded, [], [0, 1, 2])  # type: ignore[arg-type]
    zero(net.other, [], [2, 3])  # type: ignore[arg-type]
    small = compact(net, torch.randn(1, 2, 6, 6).double())
    assert notes_of(small) == []
    assert_same(net, small, torch.randn(3, 2, 6, 6).double())


@dataclass
class Answer:
    values: Tensor
    sure: Tensor
    spectrum: Tensor
    name: str


class Answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Answer:
        y = self.last(self.first(x).relu())
        return Answer(y, y > 0, torch.fft.fft(y), "answer")


def test_outputs_of_any_kind() -> None:
    net = randomize(Answers(), 0.5).eval()
    zero(net.first, [0, 1])  # type: ignore[arg-type]
    x = torch.randn(3, 4)
    for made in (compact(net, x), accelerate(net, x, repetitions=1)):
        assert describe_difference(net(x), made(x), 1e-5) is None
        assert isinstance(made(x), Answer)
    assert numbers(compact(net, x)) < numbers(net)


def test_a_layer_whose_weight_is_read_without_a_call_is_kept() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(functional.linear(x, self.layer.weight), self.layer.weight.t())

    report = compact(Tied(), torch.randn(2, 8)).compaction
    assert isinstance(report, CompactionReport)
    (row,) = report.layers
    assert row.weights == (32, 32)


class DependsOnDtype(nn.Module):
    """Reads the dtype of its own weights, as networks for half precision often do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 8), nn.Linear(8, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.first.weight.dtype
        y = self.first(x.to(dtype)).relu()
        if self.kind == "decides":
            y = 2 * y if y.dtype == torch.float32 else y
        if self.kind == "least":
            y = y + (y.sum(1, keepdim=True) * 0).to(dtype) * torch.finfo(dtype).min
        return self.last(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["converts", "decides", "least"])
def test_networks_that_depend_on_dtypes(kind: str) -> None:
    net = randomize(DependsOnDtype(kind), 0).eval()
    zero(net.first, [0, 1])  # type: ignore[arg-type]
    small = compact(net, torch.randn(2, 4))
    x = torch.randn(3, 4)
    assert small(x).dtype == torch.float32
    assert describe_difference(net(x), small(x), 1e-5) is None


class TakesTime(nn.Module):
    """Takes a scalar first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, time: Tensor, *inputs: Tensor) -> Tensor:
        return self.last(time * self.first(inputs[0]))  # type: ignore[no-any-return]


def test_a_scalar_input_and_variadic_inputs() -> None:
    net = randomize(TakesTime(), 0).eval().double()
    zero(net.first, [0, 1])  # type: ignore[arg-type]
    example = torch.tensor(0.5).double(), torch.randn(2, 4).double()
    small = compact(net, example)
    assert_same(net, small, *example)
    assert not any("nothing was removed" in note for note in notes_of(small))
    assert describe_difference(net(*example), accelerate(net, example, repetitions=1)(*example), 1e-6) is None

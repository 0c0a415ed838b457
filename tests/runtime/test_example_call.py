"""The inputs of a model, noted at its first training call."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from flipout.channels.live_paths import effective_weights
from flipout.export import compact
from flipout.runtime.example_call import ExampleCall


class Net(nn.Module):
    """A network with several ways to be called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, shift: Tensor | None = None, *more: Tensor, factor: float = 1.0) -> Tensor:
        y: Tensor = self.layer(x) * factor
        return sum(more, y if shift is None else y + shift)


def watched(model: nn.Module) -> ExampleCall:
    call = ExampleCall()
    call.watch(model)
    return call


def shapes(call: ExampleCall) -> list[tuple[int, ...]] | None:
    return None if call.inputs is None else [tuple(each.shape) for each in call.inputs]


X, Y = torch.randn(8, 4), torch.randn(8, 2)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda net: net(X), [(2, 4)]),
        (lambda net: net(x=X), [(2, 4)]),
        (lambda net: net(X, Y), [(2, 4), (2, 2)]),
        (lambda net: net(shift=Y, x=X), [(2, 4), (2, 2)]),
        (lambda net: net(X, None, factor=1.0), [(2, 4)]),
        (lambda net: net(X, Y, Y, Y), [(2, 4), (2, 2), (2, 2), (2, 2)]),
        (lambda net: net(X[:1]), [(1, 4)]),
        (lambda net: net(X, torch.ones(())), [(8, 4), ()]),
    ],
)
def test_calls_that_can_be_repeated(use: Callable[[nn.Module], Tensor], expected: list[tuple[int, ...]]) -> None:
    net = Net()
    call = watched(net)
    use(net).sum().backward()
    assert shapes(call) == expected
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda net: net(X, factor=2.0), "keyword argument factor"),
        (lambda net: net(X, 2.0), "shift of type float"),
        (lambda net: net(X, None, Y), "more, but without shift"),
    ],
)
def test_calls_that_cannot_be_repeated(use: Callable[[nn.Module], Tensor], problem: str) -> None:
    net = Net()
    call = watched(net)
    use(net)
    assert call.inputs is None
    assert problem in call.problem
    assert not net._forward_pre_hooks


class Gated(nn.Module):
    """Two optional tensors of one shape, which do different things."""

    def forward(self, x: Tensor, skip: Tensor | None = None, gate: Tensor | None = None, **others: Tensor) -> Tensor:
        x = x.relu() if skip is None else x.relu() + skip
        return x if gate is None else x * gate


def test_keyword_arguments_are_bound_by_name() -> None:
    """`m(x, gate=g)` is not `m(x, g)`, which would be a skip connection."""
    x = torch.randn(8, 4, requires_grad=True)
    for given, inputs in (({"skip": x}, 2), ({"skip": x, "gate": x}, 3), ({"gate": x, "skip": x}, 3), ({}, 1)):
        net = Gated()
        call = watched(net)
        net(x, **given)
        assert call.inputs is not None
        assert len(call.inputs) == inputs
    for given, problem in (({"gate": x}, "gate, but without skip"), ({"other": x}, "keyword argument others")):
        net = Gated()
        call = watched(net)
        net(x, **given)
        assert call.inputs is None
        assert problem in call.problem


def test_the_inputs_are_copies() -> None:
    net, x = Net(), torch.randn(8, 4)
    call = watched(net)
    net(x)
    assert call.inputs is not None
    assert torch.equal(call.inputs[0], x[:2])
    x.zero_()
    assert call.inputs[0].any()
    assert call.inputs[0].untyped_storage().nbytes() == 2 * 4 * 4


def test_an_evaluation_is_not_noted() -> None:
    net = Net()
    call = watched(net)
    with torch.no_grad():
        net(X)
    assert call.inputs is None
    assert "no call of the model" in call.problem
    net(X[:, :4])
    assert shapes(call) == [(2, 4)]


def test_the_hook_is_removed() -> None:
    net = Net()
    call = watched(net)
    call.stop()
    assert not net._forward_pre_hooks
    dropped = watched(net)
    assert net._forward_pre_hooks
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None
    assert not net._forward_pre_hooks


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_the_model_notes_nothing(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    net = Net()
    call = watched(net)
    duplicate(net)(X)
    assert call.inputs is None
    net(X)
    assert call.inputs is not None


def test_the_hook_does_not_prevent_an_analysis() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(net.get_parameter("0.weight")[0])
    call = watched(net)
    assert effective_weights(net, X).notes == ()
    assert compact(net, X) is not None
    assert call.inputs is None


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model(fullgraph: bool) -> None:
    net = Net()
    compiled = cast(nn.Module, torch.compile(net, fullgraph=fullgraph, backend="eager"))
    outer, inner = ExampleCall(), ExampleCall()
    inner.watch(net)
    outer.watch(compiled)
    compiled(X)
    assert shapes(outer) == [(2, 4)]
    assert inner.inputs is None
    assert "compiled one" in inner.problem


def test_a_wrapped_model() -> None:
    wrapped = nn.DataParallel(Net())
    call = watched(wrapped)
    wrapped(X, shift=Y)
    assert shapes(call) == [(2, 4), (2, 2)]


def test_a_copy_keeps_the_inputs() -> None:
    net = Net()
    call = watched(net)
    assert copy.deepcopy(call).inputs is None
    net(X)
    copied: Any = copy.deepcopy(call)
    assert copied.inputs is call.inputs

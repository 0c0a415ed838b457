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

from flipout.channels.comparison import tensors_of
from flipout.export import compact, effective_weights
from flipout.runtime.example_call import ExampleCall, UnsuitableCallError, tensor_arguments


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


def shapes(call: ExampleCall) -> list[tuple[int, ...]]:
    return [] if call.arguments is None else [tuple(each.shape) for each in tensors_of(call.arguments)]


X, Y = torch.randn(8, 4), torch.randn(8, 2)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda net: net(X), [(2, 4)]),
        (lambda net: net(x=X), [(2, 4)]),
        (lambda net: net(X, Y), [(2, 4), (2, 2)]),
        (lambda net: net(X, shift=Y), [(2, 4), (2, 2)]),
        (lambda net: net(X, None, factor=2.0), [(2, 4)]),
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


class Gated(nn.Module):
    """Two optional tensors of one shape, which do different things."""

    def forward(self, x: Tensor, skip: Tensor | None = None, gate: Tensor | None = None, **others: Tensor) -> Tensor:
        x = x.relu() if skip is None else x.relu() + skip
        return x if gate is None else x * gate


def test_keyword_arguments_are_bound_by_name() -> None:
    """`m(x, gate=g)` is not `m(x, g)`, which would be a skip connection. Calls that mean the same are the same."""
    x, y, net = torch.randn(8, 4), torch.randn(8, 4), Gated()
    for args, kwargs, positional, named in (
        ((x,), {}, 1, []),
        ((x, y), {}, 2, []),
        ((), {"skip": y, "x": x}, 2, []),
        ((x,), {"gate": y, "skip": y}, 3, []),
        ((x, None, y), {}, 1, ["gate"]),
        ((), {"gate": y, "x": x}, 1, ["gate"]),
        ((x,), {"other": y}, 1, ["other"]),
    ):
        found = tensor_arguments(net, args, kwargs)
        assert (len(found[0]), list(found[1])) == (positional, named)
        assert torch.equal(net(*found[0], **found[1]), net(*args, **kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((X,), {"factor": 2.0}, "factor of type float"),
        ((X, 2.0), {}, "shift of type float"),
        ((X, None, Y), {}, "more, but without shift"),
    ],
)
def test_calls_with_anything_but_tensors(args: tuple[Any, ...], kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsuitableCallError, match=problem):
        tensor_arguments(Net(), args, kwargs)


def test_the_inputs_are_copies() -> None:
    net, x = Net(), torch.randn(8, 4)
    call = watched(net)
    net(x)
    assert call.arguments is not None
    kept = call.arguments[0][0]
    assert torch.equal(kept, x[:2])
    x.zero_()
    assert kept.any()
    assert kept.untyped_storage().nbytes() == 2 * 4 * 4


def test_an_evaluation_is_not_noted() -> None:
    net = Net()
    call = watched(net)
    with torch.no_grad():
        net(X)
    assert call.arguments is None
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
    assert call.arguments is None
    net(X)
    assert call.arguments is not None


def test_the_hook_does_not_prevent_an_analysis() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(net.get_parameter("0.weight")[0])
    call = watched(net)
    assert effective_weights(net, X).notes == ()
    assert compact(net, X) is not None
    assert call.arguments is None


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model(fullgraph: bool) -> None:
    net = Net()
    compiled = cast(nn.Module, torch.compile(net, fullgraph=fullgraph, backend="eager"))
    outer, inner = ExampleCall(), ExampleCall()
    inner.watch(net)
    outer.watch(compiled)
    compiled(X)
    assert shapes(outer) == [(2, 4)]
    assert inner.arguments is None


def test_a_wrapped_model() -> None:
    wrapped = nn.DataParallel(Net())
    call = watched(wrapped)
    wrapped(X, shift=Y)
    assert shapes(call) == [(2, 4), (2, 2)]


def test_a_copy_keeps_the_inputs() -> None:
    net = Net()
    call = watched(net)
    assert copy.deepcopy(call).arguments is None
    net(X)
    copied: Any = copy.deepcopy(call)
    assert copied.arguments is call.arguments

"""Graphs without changes in place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import fx, nn

from . import operations
from .tracing_errors import UntraceableError

OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}


class InPlaceProxy(fx.Proxy):
    """A stand-in for which `+=` and its like are traced as what they are, and not as `+`."""


def _traced(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


for _function in OUT_OF_PLACE:
    setattr(InPlaceProxy, f"__{_function.__name__}__", _traced(_function))


def make_functional(model: nn.Module, graph: fx.Graph, tensors: Container[fx.Node]) -> None:
    """Replaces operations that change their input by ones that do not; who reads it later reads the result."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    changing = [node for node in graph.nodes if _in_place(model, node)]
    for node in changing:
        changed, number = node.all_input_nodes[0], place[node]
        if changed not in tensors:  # a number, of which there is a new one
            continue
        if changed.op == "get_attr":
            raise UntraceableError(f"{node.name} changes {changed.target}, which belongs to the network")
        for shared in _aliases(model, node) - {changed}:
            if any(place[user] > number for user in shared.users if user is not node):
                raise UntraceableError(f"{shared.name} is changed in place by {node.name} and read again later")
        later = {user for user in changed.users if place[user] > number}
        changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)
    for node in changing:
        if node.op == "call_module":
            model.get_submodule(str(node.target)).inplace = False  # type: ignore[assignment]
        elif node.op == "call_method":
            node.target = str(node.target)[:-1]
        else:
            node.target = _out_of_place(node)
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "inplace"}


def _out_of_place(node: fx.Node) -> Callable[..., Any]:
    """The function that gives the same and changes nothing."""
    name, target = getattr(node.target, "__name__", ""), node.target
    if not _changes_by_name(node):
        return OUT_OF_PLACE.get(target, target)  # type: ignore[arg-type]
    for home in (torch, nn.functional):
        if getattr(home, name, None) is target and (other := getattr(home, name[:-1], None)) is not None:
            return other  # type: ignore[no-any-return]
    raise UntraceableError(f"{node.name} writes into another tensor")


def _changes_by_name(node: fx.Node) -> bool:
    """torch's own way to say so: an underscore at the end."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    operators = getattr(operator, name, None) is node.target  # such as and_
    return name.endswith("_") and not name.endswith("__") and not operators


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    if node.op == "call_method":
        return _changes_by_name(node)
    if node.op != "call_function":
        return False
    if node.kwargs.get("out") is not None or node.target is operator.setitem:
        raise UntraceableError(f"{node.name} writes into another tensor")
    if any(argument is True for argument in node.args) and _takes_inplace(node.target):
        raise UntraceableError(f"{node.name} may work in place; write inplace= as a keyword, or leave it out")
    return _changes_by_name(node) or node.target in OUT_OF_PLACE or node.kwargs.get("inplace", False) is True


def _takes_inplace(function: Any) -> bool:
    return "inplace" in getattr(getattr(function, "__code__", None), "co_varnames", ())


def _aliases(model: nn.Module, changed: fx.Node) -> set[fx.Node]:
    """What may share memory with the tensor that a node changes, found without going through the node itself."""
    seen: set[fx.Node] = set()
    waiting = list(changed.all_input_nodes[:1])
    while waiting:
        node = waiting.pop()
        if node in seen or node is changed:
            continue
        seen.add(node)
        waiting += [source for source in node.all_input_nodes if _may_share(model, node, source)]
        waiting += [user for user in node.users if _may_share(model, user, node)]
    return seen


def _may_share(model: nn.Module, node: fx.Node, source: fx.Node) -> bool:
    """Whether the result of a node may be the memory of one that it reads."""
    if _in_place(model, node):
        return node.all_input_nodes[0] is source
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return not isinstance(module, FRESH_MODULES)
    asked = node.args[1] if node.target is getattr else node.target
    return node.op not in ("call_function", "call_method") or asked not in FRESH | SIZES


SIZES = {"shape", "size", "dim", "ndim", "numel", "dtype", "device"}
FRESH_MODULES = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.modules.batchnorm._BatchNorm,
    *(nn.LayerNorm, nn.GroupNorm, nn.PReLU, nn.Softmax),
    *(*operations.ACTIVATIONS, *operations.WINDOWS, *operations.AVERAGES),
)
FRESH: set[Any] = {
    *(*operations.ARITHMETIC, *operations.CONCATENATIONS, *operations.MEANS, *operations.FUNCTIONAL_ACTIVATIONS),
    *(*operations.FUNCTIONAL_AVERAGES, *operations.FUNCTIONAL_WINDOWS),
    *(operator.matmul, torch.matmul, "matmul", nn.functional.linear, nn.functional.softmax, "softmax"),
} - {"contiguous", "detach"}
"""What is made anew, and shares no memory with what it was made of."""

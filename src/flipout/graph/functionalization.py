"""Functionalize a graph: replace in-place operations by operations that return a new tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import fx, nn

from . import operations
from .copies import UnsupportedNetworkError

OUT_OF_PLACE: dict[Any, Callable[..., Any]] = {
    getattr(operator, f"i{name.rstrip('_')}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor")
}
NOT_TENSORS = {"shape", "size", "dim", "ndim", "numel", "dtype", "device"}
"""Attributes and methods of a tensor that do not return a tensor."""


class InPlaceProxy(fx.Proxy):
    """A proxy that traces `+=` and other in-place operators as such; torch.fx would trace `+`."""


def _traced_operator(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


for _function in OUT_OF_PLACE:
    setattr(InPlaceProxy, f"__{_function.__name__}__", _traced_operator(_function))


def make_functional(model: nn.Module, graph: fx.Graph, tensors: Container[fx.Node]) -> None:
    """Replace in-place operations; nodes that read the changed tensor later read the result instead."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    changing = [node for node in graph.nodes if _in_place(model, node)]
    for node in changing:
        changed, number = node.all_input_nodes[0], place[node]
        if changed not in tensors:  # a Python number, which is never changed in place
            continue
        if changed.op == "get_attr":
            raise UnsupportedNetworkError(
                f"{node.name} changes {changed.target}, a parameter or buffer of the network, in place"
            )
        for shared in _aliases(model, node) - {changed}:
            if any(place[user] > number for user in shared.users if user is not node):
                raise UnsupportedNetworkError(
                    f"{shared.name} is read again after {node.name} changed its memory in place"
                )
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
    """Return the function that computes the same without changing its input."""
    name, target = getattr(node.target, "__name__", ""), node.target
    if not _named_in_place(node):
        return OUT_OF_PLACE.get(target, target)  # type: ignore[arg-type]
    for home in (torch, nn.functional):
        if getattr(home, name, None) is target and (other := getattr(home, name[:-1], None)) is not None:
            return other  # type: ignore[no-any-return]
    raise UnsupportedNetworkError(f"{node.name} writes into another tensor")


def _named_in_place(node: fx.Node) -> bool:
    """Return whether the name ends with an underscore, which marks in-place operations in torch."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    is_operator = getattr(operator, name, None) is node.target  # such as and_, which is not in place
    return name.endswith("_") and not name.endswith("__") and not is_operator


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    if node.op == "call_method":
        return _named_in_place(node)
    if node.op != "call_function":
        return False
    if node.kwargs.get("out") is not None or node.target is operator.setitem:
        raise UnsupportedNetworkError(f"{node.name} writes into another tensor")
    if any(argument is True for argument in node.args) and _takes_inplace(node.target):
        raise UnsupportedNetworkError(f"{node.name} may work in place: pass inplace= as a keyword argument, or omit it")
    return _named_in_place(node) or node.target in OUT_OF_PLACE or node.kwargs.get("inplace", False) is True


def _takes_inplace(function: Any) -> bool:
    return "inplace" in getattr(getattr(function, "__code__", None), "co_varnames", ())


def _aliases(model: nn.Module, changed: fx.Node) -> set[fx.Node]:
    """Return the nodes that may share memory with the tensor that a node changes in place."""
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
    """Return whether the result of a node may share memory with one of its sources."""
    if _in_place(model, node):
        return node.all_input_nodes[0] is source
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return not isinstance(module, operations.MODULES_WITH_NEW_MEMORY)
    operation = node.args[1] if node.target is getattr else node.target
    has_new_memory = operation in operations.FUNCTIONS_WITH_NEW_MEMORY or operation in NOT_TENSORS
    return node.op not in ("call_function", "call_method") or not has_new_memory

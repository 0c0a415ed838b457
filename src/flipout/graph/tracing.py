"""Trace a network into a graph of operations without in-place changes, with the shape of every tensor."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from .channels import INSERTED_MODULES
from .copies import UnsupportedNetworkError, evaluation_copy, first_line, has_hooks, independent_copy
from .functionalization import InPlaceProxy, make_functional

Recorded = TypeVar("Recorded")
ABOUT_SIZES = "about sizes"  # a key in `fx.Node.meta`

SIZE_DECISION_NOTE = (
    "the network makes decisions by the sizes of tensors; the result decides as for the example: use it only with "
    "inputs of the example's size, with any batch size"
)


@dataclass(frozen=True)
class TracedNetwork:
    """A traced network.

    Args:
        model: a copy of the network in evaluation mode, with the modules that the graph calls.
        graph: its operations.
        shapes: the shape of every tensor for the example.
        notes: what could not be traced, and what the result does not accept.
    """

    model: nn.Module
    graph: fx.Graph
    shapes: Mapping[fx.Node, tuple[int, ...]]
    notes: tuple[str, ...]

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls; None if it does not call a module."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None


def trace(model: nn.Module, example: tuple[Tensor, ...]) -> TracedNetwork:
    """Trace a network with an example. A submodule that cannot be traced becomes one opaque operation."""
    model = evaluation_copy(model)
    if has_hooks(model):
        raise UnsupportedNetworkError(
            "the network has hooks, which may change its inputs and outputs: remove them first"
        )
    tracer = _Tracer(example)
    try:
        graph = tracer.trace(model)
        shapes = _run(model, graph, example, lambda tensor: tuple(tensor.shape))
    except Exception as error:  # the user's code may raise any error
        raise UnsupportedNetworkError(f"the network cannot be traced ({first_line(error)})") from error
    graph._tracer_cls = None  # unpickling traces again, and could not create a tracer that needs an example
    for node in graph.nodes:
        node.type = None  # an annotation may be a string, which would prevent pickling
    make_functional(model, graph, shapes)
    for node in reversed(graph.nodes):  # sizes that were used for decisions only
        if not node.users and node.op in ("call_function", "call_method") and _about_sizes(node):
            graph.erase_node(node)
    return TracedNetwork(model, graph, shapes, tuple(tracer.notes))


def values_for_one_example(traced: TracedNetwork, example: tuple[Tensor, ...]) -> dict[fx.Node, Tensor]:
    """Return the value of every tensor for the first example of the batch, in float64.

    The network runs on two copies of that example. A tensor whose two rows differ is left out: its first axis is not
    the batch.
    """
    repeated = (torch.cat([x[:1]] * 2).cpu() if x.ndim else x.cpu() for x in example)
    exact = tuple(x.double() if x.is_floating_point() else x for x in repeated)
    try:
        found = _run(
            independent_copy(traced.model).double().cpu(),
            traced.graph,
            exact,
            lambda tensor: tensor[0] if tensor.equal(tensor[:1].expand_as(tensor)) else None,
        )
    except Exception as error:  # the user's code may raise any error
        raise UnsupportedNetworkError(f"the network does not run in float64 ({first_line(error)})") from error
    return {node: tensor for node, tensor in found.items() if tensor is not None}


@torch.no_grad()
def _run(
    model: nn.Module, graph: fx.Graph, example: tuple[Any, ...], record: Callable[[Tensor], Recorded]
) -> dict[fx.Node, Recorded]:
    """Run a graph and record something about every tensor."""
    found: dict[fx.Node, Recorded] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor) and result.ndim:
                found[n] = record(result)
            return result

    # Copied, because an in-place operation of the model would change the example.
    Recorder(model, graph=graph).run(*copy.deepcopy(example))
    return found


class _Tracer(fx.Tracer):
    """Traces into all modules except torch's own, inserted and scripted ones, those with hooks, and those that fail.

    The traced network takes the arguments that the example has; all others keep their defaults. Where the network
    makes decisions by the sizes of tensors, the trace follows the decision for the example.
    """

    proxy_buffer_attributes = True

    def __init__(self, example: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.example, self.notes = example, list[str]()
        self.values: dict[fx.Node, Any] = {}
        self.evaluating = False  # True while nodes are evaluated, and calls must not be traced

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        parameters = list(inspect.signature(root_fn).parameters.values())[1:]
        names: list[str] = []
        while len(names) < len(self.example):
            parameter = parameters[min(len(names), len(parameters) - 1)]
            several = parameter.kind is parameter.VAR_POSITIONAL
            name = f"{parameter.name}_{len(names)}" if several else parameter.name
            while name in names:
                name += "_"
            names.append(name)
        self.notes += [
            f"{omitted.name} is fixed to {omitted.default!r} and is not an argument of the result"
            for omitted in parameters[len(names) :]
            if omitted.default is not omitted.empty
        ]
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return InPlaceProxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_opaque = isinstance(m, (*INSERTED_MODULES, torch.jit.ScriptModule)) or has_hooks(m)
        return is_opaque or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> bool:
        if not _about_sizes(obj.node):
            return super().to_bool(obj)
        if SIZE_DECISION_NOTE not in self.notes:
            self.notes.append(SIZE_DECISION_NOTE)
        return bool(self._value(obj.node))

    @torch.no_grad()
    def _value(self, wanted: fx.Node) -> Any:
        """Return the result of a node for the example."""
        interpreter = fx.Interpreter(self.root, graph=self.graph)
        interpreter.env, inputs = self.values, iter(copy.deepcopy(self.example))
        self.evaluating = True
        try:
            for node in self.graph.nodes:
                if node not in self.values:
                    self.values[node] = next(inputs) if node.op == "placeholder" else interpreter.run_node(node)
        finally:
            self.evaluating = False
        return self.values[wanted]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.evaluating else super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.evaluating:
            return forward(*args, **kwargs)
        before, stack, notes = len(self.graph.nodes), dict(self.module_stack), list(self.notes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # the user's code may raise any error
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack)
            name = self.path_of_module(m)
            self.notes = notes
            self.notes.append(
                f"{name} ({type(m).__name__}) is left unchanged because it cannot be traced ({first_line(error)})"
            )
            return self.create_proxy("call_module", name, args, kwargs)


def _about_sizes(node: fx.Node) -> bool:
    """Return whether the result of a node depends only on sizes of tensors, and not only on the batch size."""
    if ABOUT_SIZES not in node.meta:
        node.meta[ABOUT_SIZES] = _asks_for_size(node) or _computed_from_sizes(node)
    return bool(node.meta[ABOUT_SIZES])


def _asks_for_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "dim" or (node.target == "size" and (*node.args[1:], *node.kwargs.values()) != (0,))
    return node.target is getattr and node.args[1] in ("shape", "ndim")


def _computed_from_sizes(node: fx.Node) -> bool:
    of_batch = node.target is operator.getitem and node.args[1] == 0
    computed = node.op in ("call_function", "call_method") and bool(node.all_input_nodes) and not of_batch
    return computed and all(map(_about_sizes, node.all_input_nodes))

"""A network as a graph of operations: traced, free of in-place changes, with the shape of every tensor."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx, nn

from .comparison import own_copy
from .functional_form import InPlaceProxy, make_functional
from .rules.channel_modules import PARTS
from .tracing_errors import UntraceableError, first_line

Seen = TypeVar("Seen")
ABOUT_SIZES = "about sizes"  # in what a node knows of itself

DECIDED = (
    "the network decides by the sizes of tensors, and the result as for the example: give it inputs of no other size, "
    "but for the batch"
)


@dataclass(frozen=True)
class Traced:
    """A copy of a model in evaluation mode, its graph, the shapes of an example's tensors, and what was not traced."""

    model: nn.Module
    graph: fx.Graph
    shapes: Mapping[fx.Node, tuple[int, ...]]
    notes: tuple[str, ...]

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None


def trace(model: nn.Module, example: tuple[Tensor, ...]) -> Traced:
    """Follows a model with an example. A submodule that cannot be followed becomes one opaque operation."""
    model = own_copy(model)
    if hooked(model):
        raise UntraceableError("the network has hooks, which may change what it reads and gives: remove them first")
    tracer = _Tracer(example)
    try:
        graph = tracer.trace(model)
        shapes = _run(model, graph, example, lambda tensor: tuple(tensor.shape))
    except Exception as error:  # any code of the user's may run here
        raise UntraceableError(f"the network cannot be traced ({first_line(error)})") from error
    graph._tracer_cls = None  # a network that is unpickled is traced again, without an example
    for node in graph.nodes:
        node.type = None  # annotations, which may be mere text and then keep a network from being pickled
    make_functional(model, graph, shapes)
    for node in reversed(graph.nodes):  # sizes that were only decided by
        if not node.users and node.op in ("call_function", "call_method") and _about_sizes(node):
            graph.erase_node(node)
    return Traced(model, graph, shapes, tuple(tracer.notes))


def evaluate(traced: Traced, example: tuple[Tensor, ...]) -> dict[fx.Node, Tensor]:
    """Every tensor of the network for the first of the examples, in float64, where it is the same for each in a batch.

    It is not where the first axis is none of examples, and then the tensor is left out.
    """
    alike = (torch.cat([x[:1]] * 2).cpu() if x.ndim else x.cpu() for x in example)
    exact = tuple(x.double() if x.is_floating_point() else x for x in alike)
    try:
        found = _run(
            copy.deepcopy(traced.model).double().cpu(),
            traced.graph,
            exact,
            lambda tensor: tensor[0] if tensor.equal(tensor[:1].expand_as(tensor)) else None,
        )
    except Exception as error:  # any code of the user's may run here
        raise UntraceableError(f"the network does not run in float64 ({first_line(error)})") from error
    return {node: tensor for node, tensor in found.items() if tensor is not None}


def hooked(module: nn.Module) -> bool:
    """Whether something may change what goes into a module or comes out of it."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@torch.no_grad()
def _run(
    model: nn.Module, graph: fx.Graph, example: tuple[Any, ...], look: Callable[[Tensor], Seen]
) -> dict[fx.Node, Seen]:
    recorder = _Recorder(model, graph, look)
    # An in-place operation of the model would else change the example.
    recorder.run(*copy.deepcopy(example))
    return recorder.found


class _Tracer(fx.Tracer):
    """Traces through everything but torch's own modules, ours, those with hooks, and what fails.

    The network takes what the example gives it; its other arguments stay at their defaults. Where it decides by the
    sizes of tensors, it decides as for the example.
    """

    proxy_buffer_attributes = True

    def __init__(self, example: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.example, self.notes = example, list[str]()
        self.values: dict[fx.Node, Any] = {}
        self.evaluating = False  # while torch's modules are changed so that calls of them are traced

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
            f"{left.name} stays {left.default!r}, and is no argument of the result"
            for left in parameters[len(names) :]
            if left.default is not left.empty
        ]
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return InPlaceProxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PARTS) or hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> bool:
        if not _about_sizes(obj.node):
            return super().to_bool(obj)
        if DECIDED not in self.notes:
            self.notes.append(DECIDED)
        return bool(self._value(obj.node))

    @torch.no_grad()
    def _value(self, wanted: fx.Node) -> Any:
        """What an operation gives for the example."""
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
        except Exception as error:  # any code of the user's may run here
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack)
            name = self.path_of_module(m)
            self.notes = notes
            self.notes.append(f"{name} ({type(m).__name__}) is left as it is: cannot be traced ({first_line(error)})")
            return self.create_proxy("call_module", name, args, kwargs)


class _Recorder(fx.Interpreter, Generic[Seen]):
    """Runs a graph and writes down something of every tensor."""

    def __init__(self, model: nn.Module, graph: fx.Graph, look: Callable[[Tensor], Seen]) -> None:
        super().__init__(model, graph=graph)
        self.look = look
        self.found: dict[fx.Node, Seen] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor) and result.ndim:
            self.found[n] = self.look(result)
        return result


def _about_sizes(node: fx.Node) -> bool:
    """Whether the result depends on nothing but the sizes of tensors, and not on that of the batch alone."""
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

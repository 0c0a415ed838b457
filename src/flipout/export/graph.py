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

from ..layers import unwrapped
from .parts import PARTS

Seen = TypeVar("Seen")

OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


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


class UntraceableError(Exception):
    """The network as a whole cannot be followed; the message says why."""


def trace(model: nn.Module, example: tuple[Any, ...]) -> Traced:
    """Follows a model with an example. A submodule that cannot be followed becomes one opaque operation."""
    model = copy.deepcopy(unwrapped(model)).eval()
    tracer = _Tracer()
    parameters = list(inspect.signature(model.forward).parameters.values())[len(example) :]
    left_out = {p.name: p.default for p in parameters if p.default is not p.empty}
    try:
        graph = tracer.trace(model, left_out or None)
        shapes = _run(model, graph, example, lambda tensor: tuple(tensor.shape))
    except Exception as error:  # any code of the user's may run here
        raise UntraceableError(f"the network cannot be traced ({_first_line(error)})") from error
    _make_functional(model, graph)
    return Traced(model, graph, shapes, tuple(tracer.notes))


def evaluate(traced: Traced, example: tuple[Any, ...]) -> dict[fx.Node, Tensor]:
    """Every tensor of the network for the first of the examples, in float64."""
    exact = tuple(x.double().cpu() if x.is_floating_point() else x.cpu() for x in example)
    try:
        return _run(
            copy.deepcopy(traced.model).double().cpu(), traced.graph, exact, lambda tensor: tensor[:1].squeeze(0)
        )
    except Exception as error:  # any code of the user's may run here
        raise UntraceableError(f"the network does not run in float64 ({_first_line(error)})") from error


@torch.no_grad()
def _run(
    model: nn.Module, graph: fx.Graph, example: tuple[Any, ...], look: Callable[[Tensor], Seen]
) -> dict[fx.Node, Seen]:
    recorder = _Recorder(model, graph, look)
    # An in-place operation of the model would else change the example.
    recorder.run(*copy.deepcopy(example))
    return recorder.found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Tracer(fx.Tracer):
    """Traces through everything but torch's own modules, ours, and what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PARTS) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before, stack = len(self.graph.nodes), dict(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # any code of the user's may run here
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack)
            name = self.path_of_module(m)
            self.notes.append(f"{name} ({type(m).__name__}) is left as it is: cannot be traced ({_first_line(error)})")
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


def _make_functional(model: nn.Module, graph: fx.Graph) -> None:
    """Replaces operations that change their input by ones that do not, where nobody reads it afterwards."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    changing = [node for node in graph.nodes if _in_place(model, node)]
    for node in changing:
        for shared in _aliases(model, node):
            if any(place[user] > place[node] for user in shared.users if user is not node):
                raise UntraceableError(f"{shared.name} is changed in place by {node.name} and read again later")
    for node in changing:
        if node.op == "call_module":
            model.get_submodule(str(node.target)).inplace = False  # type: ignore[assignment]
        elif node.op == "call_method":
            node.target = str(node.target)[:-1]
        elif node.target in OUT_OF_PLACE:
            node.target = OUT_OF_PLACE[node.target]
        else:
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "inplace"}


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") and not name.endswith("__")
    if node.op != "call_function":
        return False
    if node.kwargs.get("out") is not None or node.target is operator.setitem:
        raise UntraceableError(f"{node.name} writes into another tensor")
    if any(argument is True for argument in node.args) and _takes_inplace(node.target):
        raise UntraceableError(f"{node.name} may work in place; write inplace= as a keyword, or leave it out")
    return node.target in OUT_OF_PLACE or node.kwargs.get("inplace", False) is True


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
    return not (node.op == "call_function" and node.target in FRESH_FUNCTIONS)


FRESH_MODULES = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.modules.batchnorm._BatchNorm,
    nn.ReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
)
FRESH_FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.cat, torch.relu}

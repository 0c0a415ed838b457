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

from .compare import own_copy
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
        raise UntraceableError(f"the network cannot be traced ({_first_line(error)})") from error
    graph._tracer_cls = None  # a network that is unpickled is traced again, without an example
    for node in graph.nodes:
        node.type = None  # annotations, which may be mere text and then keep a network from being pickled
    _make_functional(model, graph)
    for node in reversed(graph.nodes):  # sizes that were only decided by
        if not node.users and _about_sizes(node):
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
        raise UntraceableError(f"the network does not run in float64 ({_first_line(error)})") from error
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


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
            names.append(f"{parameter.name}_{len(names)}" if several else parameter.name)
        self.notes += [
            f"{left.name} stays {left.default!r}, and is no argument of the result"
            for left in parameters[len(names) :]
            if left.default is not left.empty
        ]
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PARTS) or hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self._value(obj.node)) if _about_sizes(obj.node) else super().to_bool(obj)

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


def _about_sizes(node: fx.Node) -> bool:
    """Whether the result depends on nothing but the sizes and types of tensors."""
    if node.target in ("size", "dim") or (node.target is getattr and node.args[1] in ("shape", "ndim", "dtype")):
        return True
    computed, sources = node.op in ("call_function", "call_method"), node.all_input_nodes
    return computed and bool(sources) and all(map(_about_sizes, sources))


def _make_functional(model: nn.Module, graph: fx.Graph) -> None:
    """Replaces operations that change their input by ones that do not; who reads it later reads the result."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    changing = [node for node in graph.nodes if _in_place(model, node)]
    for node in changing:
        changed, number = node.all_input_nodes[0], place[node]
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

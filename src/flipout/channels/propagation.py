"""Goes through a recorded network once, and gives every tensor its labels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from .labels import FIXED, Factors, Labels, Value, dims_of, distinct, vector_along
from .norm_calls import NormCall
from .record import Recording, line_of, module_of

Result = Any
"""A `Value`, a list of them for an operation with several results, or None for what is not a tensor."""
Rule = Callable[["Call"], Result]
MIXES = "mixes its channels"
MEETS = "combines it with a tensor that stays whole"


@dataclass(frozen=True)
class Reading:
    """A weight that is multiplied with a tensor, and summed over some labels.

    Args:
        weight: its name.
        labels: the labels that it reads.
        dims: the dimensions of the weight that these lie along; None if that is not known.
    """

    weight: str
    labels: Tensor
    dims: tuple[int, ...] | None = None


@dataclass
class Propagation:
    """The labels of all tensors, and how they were found.

    Args:
        labels: the sets of labels.
        tensors: for each parameter and buffer the labels of each of its dimensions.
        readings: the weights that read labels.
        places: for each weight, how often each of its elements is multiplied for the example.
        joint: factors that depend on several dimensions.
        values: the result of each operation.
        norms: for each norm that can lose channels which are zero, the dimension of its channels, counted from the last
            one, and their labels.
    """

    labels: Labels = field(default_factory=Labels)
    tensors: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    joint: list[Tensor] = field(default_factory=list)
    values: dict[fx.Node, Result] = field(default_factory=dict)
    norms: dict[str, tuple[int, Tensor]] = field(default_factory=dict)
    _calls: Sequence[NormCall] = ()

    def run(self, recording: Recording, rules: Callable[[fx.Node], Rule], norms: Sequence[NormCall] = ()) -> None:
        """Apply the rule of every operation, in their order. Let channels pass through some norms."""
        self._calls = norms
        inputs = [self._input(node, recording.tensors) for node in recording.graph.find_nodes(op="placeholder")]
        for value in tensors_in(self.run_graph(recording.module, inputs, rules)):
            for factor in value.factors:
                self.labels.fix(factor, "the network returns it")
        self._make_rectangular()

    def run_graph(self, module: fx.GraphModule, inputs: list[Result], rules: Callable[[fx.Node], Rule]) -> Result:
        """Go through a graph, which may be part of another one; return its results."""
        rest, before = iter(inputs), self._snapshot()
        first, last = ({call.nodes[end]: call for call in self._calls} for end in (0, -1))
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(rest)
            elif node.op == "get_attr":
                target: Any = module
                for part in str(node.target).split("."):
                    target = getattr(target, part)
                self.values[node] = Value(tuple(target.shape)) if isinstance(target, Tensor) else target
            elif node.op == "output":
                return fx.map_arg(node.args[0], lambda each: self.values[each])
            elif node.target is operator.getitem:
                source = self.values[node.args[0]]
                self.values[node] = source[node.args[1]] if isinstance(source, list | tuple) else source
            else:
                before = self._snapshot() if node in first else before
                call = Call.of(self, node, rules)
                self.values[node] = result = rules(node)(call)
                self._note_joint(result)
                if node in last:
                    self._pass_through(last[node], before)
        return None

    def _snapshot(self) -> tuple[tuple[Tensor, int], int]:
        return self.labels.snapshot(), len(self.joint)

    def _pass_through(self, norm: NormCall, before: tuple[tuple[Tensor, int], int]) -> None:
        """If the operations of a norm have fixed its channels, tie them to those of its tensors and result instead."""
        source, own = self.values[norm.source], [self.values[node] for node in norm.tensors]
        single = all(len(each.factors) == 1 and len(dims_of(each.factors[0])) == 1 for each in (source, *own))
        if not single or not self.labels.fixed_since(before[0], source.factors[0]):
            return
        labels, (dim,) = source.factors[0].flatten(), dims_of(source.factors[0])
        place = dim - len(source.shape)
        fits = all(each.factors[0].numel() == len(labels) for each in own)
        if not fits or (norm.path in self.norms and self.norms[norm.path][0] != place):
            return
        self.labels.restore(before[0])
        del self.joint[before[1] :]
        for each in own:
            self.labels.tie(each.factors[0].flatten(), labels)
        for node in norm.nodes:
            meta = node.meta.get("val")
            self.values[node] = Value(tuple(map(int, meta.shape))) if isinstance(meta, Tensor) else None
        self.values[norm.result] = Value(source.shape, source.factors)
        self.norms[norm.path] = place, labels

    def _input(self, node: fx.Node, names: Mapping[fx.Node, str]) -> Result:
        meta = node.meta.get("val")
        if not isinstance(meta, Tensor):
            return None
        shape = tuple(map(int, meta.shape))
        if node not in names:
            return Value(shape)
        name = names[node]
        if name not in self.tensors:
            self.tensors[name] = tuple(
                self.labels.new(size) if size > 1 else torch.full((size,), FIXED) for size in shape
            )
        factors = [
            vector_along(dim, len(shape), labels) for dim, labels in enumerate(self.tensors[name]) if len(labels) > 1
        ]
        return Value(shape, tuple(factors), name)

    def _note_joint(self, result: Result) -> None:
        for value in tensors_in(result):
            self.joint += [factor for factor in value.factors if len(dims_of(factor)) > 1]

    def _make_rectangular(self) -> None:
        """Tie labels so that of a tensor with labels along several dimensions whole rows or columns go."""
        for factor in self.joint:
            for left in self.labels.compressed([factor]):
                dims = dims_of(left)
                if len(dims) > 1:  # keep apart what has the most different labels
                    units = {dim: len(distinct(left.movedim(dim, 0).flatten(1)[:, 0])) for dim in dims}
                    best = max(dims, key=lambda dim: units[dim])
                    self.labels.joined(left, [dim for dim in dims if dim != best])


@dataclass(frozen=True)
class Call:
    """One operation of the recorded network.

    Args:
        propagation: what is known so far.
        node: the operation.
        arguments: its arguments by name; tensors are `Value`s.
        shapes: the shape of each result.
        rules: finds the rule of an operation, for graphs within this one.
    """

    propagation: Propagation
    node: fx.Node
    arguments: Mapping[str, Any]
    shapes: list[tuple[int, ...]]
    rules: Callable[[fx.Node], Rule]

    @classmethod
    def of(cls, propagation: Propagation, node: fx.Node, rules: Callable[[fx.Node], Rule]) -> Call:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: propagation.values.get(each))
        arguments = dict(kwargs)
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            arguments["args"] = args
        else:
            arguments = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
            arguments |= {each.name: value for each, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
        meta = node.meta.get("val")
        results = meta if isinstance(meta, list | tuple) else [meta]
        shapes = [tuple(map(int, each.shape)) if isinstance(each, Tensor) else () for each in results]
        return cls(propagation, node, arguments, shapes, rules)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)

    @property
    def labels(self) -> Labels:
        return self.propagation.labels

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0]

    @property
    def values(self) -> list[Value]:
        """All tensors among the arguments."""
        return tensors_in(list(self.arguments.values()))

    @property
    def several(self) -> bool:
        return isinstance(self.node.meta.get("val"), list | tuple)

    def result(self, values: Iterable[Value]) -> Result:
        """The results of the operation; the first one alone if it has no others."""
        found = list(values)
        return found if self.several else found[0]

    @property
    def place(self) -> str:
        """Where the operation is, for notes."""
        where, line = module_of(self.node), line_of(self.node)
        name = str(self.node.target).removeprefix("aten.").partition(".")[0]
        return f"{where or 'the network'} ({name}{f' at {line}' if line else ''})"

    def because(self, reason: str) -> str:
        return f"{self.place} {reason}"

    def fix(self, factors: Iterable[Tensor], reason: str = MIXES) -> None:
        for factor in factors:
            self.labels.fix(factor, self.because(reason))

    def collapse(self, factors: Factors, dims: Iterable[int], reason: str = MIXES) -> Factors:
        """The factors without some dimensions, which stay whole."""
        return self.labels.collapse(factors, dims, self.because(reason))

    def tie(self, one: Tensor, other: Tensor) -> None:
        self.labels.tie(one, other, self.because(MEETS))

    def read(self, weight: str, labels: Tensor, dims: tuple[int, ...] | None = None) -> None:
        """Note that a weight reads some labels, along some of its dimensions."""
        self.propagation.readings.append(Reading(weight, labels.flatten(), dims))

    def dims_with(self, weight: str, labels: Tensor) -> tuple[int, ...] | None:
        """The dimensions of a weight that have some labels of its own; None if there are none."""
        own = self.propagation.tensors[weight]
        return tuple(dim for dim, each in enumerate(own) if bool(torch.isin(labels, each).all())) or None

    def count(self, weight: Value, places: int) -> None:
        """Note how often each element of a weight is multiplied."""
        if weight.weight is not None:
            known = self.propagation.places
            known[weight.weight] = known.get(weight.weight, 0) + places


def tensors_in(tree: Any) -> list[Value]:
    """The tensors in nested lists."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, list | tuple):
        return [value for each in tree for value in tensors_in(each)]
    return []

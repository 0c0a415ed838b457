"""Which rule an operation follows. What is not recognized is opaque: it reads and gives whole tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional

from . import operations
from .analysis import Analysis
from .channels import Channels, Rule
from .rules.channel_modules import PARTS
from .rules.channelwise import Activation, Flatten, Size, Unsqueeze, Window
from .rules.layers_with_weights import Dense, Grouped, Norm
from .rules.sums_and_concatenations import Concatenation, Sum, Together
from .tracing import Traced, hooked


def analyze(traced: Traced) -> tuple[Analysis, list[str]]:
    """The rule of every operation and what is known of every tensor, from the input on; and what is opaque."""
    analysis, notes = Analysis({}, {}, {}), []
    shared, examples = _shared_modules(traced), _of_examples(traced)
    for node in traced.graph.nodes:
        rule = Recognizer(traced, analysis.facts, shared, examples).rule(node)
        if rule is None:
            rule = Rule(node, node.all_input_nodes, [None] * len(node.all_input_nodes))
            if note := _opaque_note(traced, node, analysis.facts, shared):
                notes.append(note)
        shapes = [traced.shapes.get(source, ()) for source in rule.sources]
        analysis.sizes[node] = [1 if a is None else shape[a] for a, shape in zip(rule.axes, shapes, strict=True)]
        analysis.rules[node] = rule
        analysis.facts[node] = rule.forward(analysis.inputs(rule))
    return analysis, notes


def _shared_modules(traced: Traced) -> set[str]:
    """Modules with weights that are called more than once, or that share a weight with another."""
    calls: dict[int, list[str]] = {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            module = traced.model.get_submodule(str(node.target))
            for tensor in (*module.parameters(), *module.buffers()):
                calls.setdefault(id(tensor), []).append(str(node.target))
        elif node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(traced.model)
            calls.setdefault(id(tensor), []).append(str(node.target).rpartition(".")[0])
    return {name for names in calls.values() if len(names) > 1 for name in names}


def _of_examples(traced: Traced) -> set[fx.Node]:
    """What is made of the inputs of the network, and so has an example for each of theirs."""
    found: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op == "placeholder" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _opaque_note(traced: Traced, node: fx.Node, facts: Mapping[fx.Node, Channels], shared: set[str]) -> str | None:
    module = traced.module(node)
    if (
        node.op == "output"
        or isinstance(module, PARTS)
        or not (
            isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
            or any(facts[source].axis is not None for source in node.all_input_nodes)
        )
    ):
        return None
    if module is None:
        what = getattr(node.target, "__name__", str(node.target))
        return f"{node.name} ({what}) may mix channels: it is left as it is, and reads all there are"
    why = "may mix channels"
    if str(node.target) in shared:
        why = "is called more than once, or shares its weights"
    elif hooked(module):
        why = "has hooks"
    return f"{node.target} ({type(module).__name__}) {why}: it is left as it is, and reads all channels there are"


class Recognizer:
    """Finds the rule of a node, given what is known of the tensors before it."""

    def __init__(
        self, traced: Traced, facts: Mapping[fx.Node, Channels], shared: set[str], examples: set[fx.Node]
    ) -> None:
        self.traced, self.facts, self.shared, self.examples = traced, facts, shared, examples

    def rule(self, node: fx.Node) -> Rule | None:
        """The rule; None for an operation that is not known."""
        sources = node.all_input_nodes
        if not sources or node.op not in ("call_module", "call_function", "call_method"):
            return None
        if sources[0] not in self.traced.shapes:
            return None
        if (size := self._size(node)) is not None:
            return size
        if node not in self.traced.shapes:
            return None
        if node.op == "call_module":
            return self._module(node, sources[0])
        return self._call(node, sources)

    def _module(self, node: fx.Node, source: fx.Node) -> Rule | None:
        module = self.traced.model.get_submodule(str(node.target))
        kind, axis, dimensions = type(module), self.facts[source].axis, len(self.traced.shapes[source])
        if len(node.args) != 1 or node.kwargs or str(node.target) in self.shared or hooked(module):
            return None
        if isinstance(module, nn.Linear):
            return Dense(node, source, dimensions - 1, module) if kind is nn.Linear and dimensions > 1 else None
        if isinstance(module, nn.modules.conv._ConvNd):
            sizes = operations.CONVOLUTIONS if module.groups > 1 else operations.CONVOLUTIONS | operations.TRANSPOSED
            fits = sizes.get(kind) == dimensions - 2
            return (Dense if module.groups == 1 else Grouped)(node, source, 1, module) if fits else None
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            fits = kind in operations.NORMS and module.running_mean is not None
            return Norm(node, source, module) if fits else None
        if kind in operations.SAME:
            return Activation(node, source, axis, lambda x: x)
        if kind in operations.ACTIVATIONS:
            return Activation(node, source, axis, module)
        if kind is nn.Flatten:
            return self._flattened(node, source)
        spatial = (operations.WINDOWS | operations.AVERAGES).get(kind)
        fits = spatial == dimensions - 2 or kind is nn.Upsample
        if axis not in (1, None) or not fits or getattr(module, "return_indices", False):
            return None
        return Window(node, source, axis, zeros=kind in operations.AVERAGES and _counts_zeros(vars(module)))

    def _call(self, node: fx.Node, sources: list[fx.Node]) -> Rule | None:
        target = node.target
        if target in operations.FLATTENS or target in operations.UNSQUEEZES:
            first = node.args[:1] == (sources[0],)
            return self._flattened(node, sources[0]) or self._unsqueezed(node, sources[0]) if first else None
        if target in operations.CONCATENATIONS:
            return self._concatenation(node)
        if target in operations.ARITHMETIC and len(sources) == 2 and list(node.args) == sources and not node.kwargs:
            return self._binary(node, sources)
        if len(sources) != 1:
            return None
        source, axis = sources[0], self.facts[sources[0]].axis
        if target in operations.FUNCTIONAL_ACTIVATIONS or target in operations.ARITHMETIC:
            others = (*node.args, *node.kwargs.values())
            plain = all(isinstance(argument, fx.Node | float | int | str | None) for argument in others)
            return Activation(node, source, axis, lambda x: _evaluate(node, x)) if plain else None
        if target is functional.dropout:
            training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
            return Activation(node, source, axis, lambda x: x) if training is False else None
        return self._window(node, source) if axis in (1, None) and node.args[:1] == (source,) else None

    def _window(self, node: fx.Node, source: fx.Node) -> Rule | None:
        target, axis, dimensions = node.target, self.facts[source].axis, len(self.traced.shapes[source])
        if operations.FUNCTIONAL_WINDOWS.get(target) == dimensions - 2:
            return None if node.kwargs.get("return_indices") else Window(node, source, axis, zeros=False)
        if operations.FUNCTIONAL_AVERAGES.get(target) == dimensions - 2:
            options = {**dict(zip(operations.AVERAGE_ARGUMENTS, node.args, strict=False)), **node.kwargs}
            return Window(node, source, axis, zeros=_counts_zeros(options))
        if target in operations.MEANS and _over_positions(node, dimensions):
            return Window(node, source, axis, zeros=False)
        return None

    def _binary(self, node: fx.Node, sources: list[fx.Node]) -> Rule | None:
        shape, shapes = self.traced.shapes[node], [self.traced.shapes.get(source) for source in sources]
        axes = {self.facts[source].axis for source in sources} - {None}
        if len(axes) != 1 or any(other is None or len(other) != len(shape) for other in shapes):
            return None
        (axis,) = axes
        assert axis is not None
        # What is not made of examples has no batch, even if it seems to have one of just their number.
        alike = all(other == shape for other in shapes) and self.examples.issuperset(sources)
        if node.target in operations.ADDITIONS and alike:
            return Sum(node, sources, axis, len(shape))
        own = [axis if other is not None and other[axis] == shape[axis] else None for other in shapes]
        return Together(node, sources, own, axis, node.target in operations.PRODUCTS)

    def _concatenation(self, node: fx.Node) -> Rule | None:
        tensors = node.args[0] if node.args else node.kwargs.get("tensors")
        dimension = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        if not isinstance(tensors, list | tuple) or not isinstance(dimension, int):
            return None
        axis = dimension % len(self.traced.shapes[node])
        sources = [source for source in tensors if isinstance(source, fx.Node)]
        axes = {self.facts[source].axis for source in sources} - {None}
        if axes != {axis}:
            return None
        return Concatenation(node, sources, axis, [self.traced.shapes[source][axis] for source in sources])

    def _flattened(self, node: fx.Node, source: fx.Node) -> Rule | None:
        before, after = self.traced.shapes[source], self.traced.shapes[node]
        same = self.facts[source].axis == 1 and after == (before[0], math.prod(before[1:]))
        return Flatten(node, source, math.prod(before[2:])) if same and node.target is not operator.getitem else None

    def _unsqueezed(self, node: fx.Node, source: fx.Node) -> Rule | None:
        before, after = self.traced.shapes[source], self.traced.shapes[node]
        added = len(after) - len(before)
        if self.facts[source].axis != 1 or added < 1 or after != before + (1,) * added:
            return None
        if node.target is operator.getitem:
            index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
            if any(part not in (None, ..., slice(None)) for part in index):
                return None
        return Unsqueeze(node, source, added)

    def _size(self, node: fx.Node) -> Rule | None:
        """`x.size(0)`, `x.shape[2]` and the like."""
        source = node.all_input_nodes[0]
        axis, dimensions = self.facts[source].axis, len(self.traced.shapes[source])
        asks = node.target == "size" or (node.target is getattr and node.args[1:] == ("shape",))
        if not asks or axis is None:
            return None
        asked = [node.args[1]] if node.target == "size" and len(node.args) > 1 else [*map(_item, node.users)]
        fine = all(isinstance(item, int) and item % dimensions != axis for item in asked)
        return Size(node, [source], [axis]) if fine else None


def _over_positions(node: fx.Node, dimensions: int) -> bool:
    """Whether a mean leaves examples and channels apart."""
    over = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    over = [over] if isinstance(over, int) else over
    if not isinstance(over, list | tuple) or "dtype" in node.kwargs:
        return False
    return all(isinstance(d, int) and d % dimensions > 1 for d in over)


def _item(user: fx.Node) -> Any:
    return user.args[1] if user.target is operator.getitem else None


def _counts_zeros(options: Mapping[str, Any]) -> bool:
    """Whether an average pooling counts zeros beside the image, or divides by another number than it adds up."""
    padding = options.get("padding", 0)
    padded = any(padding) if isinstance(padding, list | tuple) else padding != 0
    return bool(padded and options.get("count_include_pad", True)) or options.get("divisor_override") is not None


def _evaluate(node: fx.Node, x: Tensor) -> Any:
    """What a call gives for other numbers than it was traced with."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: x)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)

"""Lossless compaction: the same network with fewer channels.

Channels that nothing reads are removed in place, from a copy of the network: `_without_unread`. Constant channels are
folded by rebuilding the network from a trace: one pass of that reads from top to bottom in `_one_pass`. Passes are
repeated until nothing more can be removed. Whatever is smaller is verified and returned.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY as PRESERVED
from torch.nn.modules.conv import _ConvNd

from ..channels.graph import ChannelGraph
from ..channels.trial import Trial, unread
from ..graph.analysis import analyze
from ..graph.comparison import Arguments, EquivalenceCheck, Example, as_arguments
from ..graph.copies import UnsupportedNetworkError, evaluation_copy, first_line, independent_copy
from ..graph.rebuild import GraphBuilder
from ..graph.tracing import trace, values_for_one_example
from ..text_table import table


@dataclass(frozen=True)
class LayerChange:
    """The inputs, outputs and weights (zeros included) of a layer, each before and after; 0 if it was removed."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weights: tuple[int, int]


@dataclass(frozen=True)
class CompactionReport:
    """The change of every Linear and convolution layer; prints as a table."""

    layers: tuple[LayerChange, ...]

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a pickled network needs no flipout

    def __deepcopy__(self, memo: dict[int, Any]) -> CompactionReport:
        return self

    @property
    def weights(self) -> tuple[int, int]:
        """The total number of weights, before and after."""
        return sum(layer.weights[0] for layer in self.layers), sum(layer.weights[1] for layer in self.layers)

    @property
    def channels(self) -> tuple[int, int]:
        """The total number of outputs, before and after."""
        return sum(layer.outputs[0] for layer in self.layers), sum(layer.outputs[1] for layer in self.layers)

    def __str__(self) -> str:
        def change(pair: tuple[int, int]) -> str:
            return f"{pair[0]:,} -> {pair[1]:,}"

        rows = [(layer.name, *map(change, (layer.inputs, layer.outputs, layer.weights))) for layer in self.layers]
        rows.append(("total", "", change(self.channels), change(self.weights)))
        return table(("layer", "inputs", "outputs", "weights"), rows)


def compact(model: nn.Module, example_input: Example | Mapping[str, Tensor], *, fixed_size: bool = False) -> nn.Module:
    """Return a network with fewer channels and, in evaluation mode, the same outputs up to rounding.

    Every channel that is never read is removed from a copy of the network, which keeps its class, its attributes and
    the names of its parameters. If channels are constant, and could be folded into the layers that follow, the result
    is a graph of torch.fx instead. Parts that cannot be analysed are left unchanged. The result has two more
    attributes: `notes` lists what was left unchanged and why, and `compaction` reports the change of each layer.

        >>> model[0].weight.data[4:] = model[0].bias.data[4:] = 0  # 12 of 16 channels
        >>> small = flipout.export.compact(model, example_input)
        >>> print(small.compaction)
        layer    inputs  outputs    weights
        -----------------------------------
        0      12 -> 12  16 -> 4  192 -> 48
        2       16 -> 4   4 -> 4   64 -> 16
        -----------------------------------
        total            20 -> 8  256 -> 64

    Args:
        model: the network; it is not changed. It must run on the example.
        example_input: the inputs that the network is called with: a tensor, a tuple, or a dictionary of arguments by
            name. Their values and batch size do not matter.
        fixed_size: whether the result may require inputs of the example's size, with any batch size. Then channels are
            removed too that do not depend on the input but vary at the borders, where a constant meets zero padding.
    """
    arguments, original = as_arguments(example_input), evaluation_copy(model)
    compacted, notes = compact_copy(original, arguments, fixed_size=fixed_size)
    report = CompactionReport(tuple(_layer_changes(original, compacted)))
    return attach_attributes(compacted, notes=notes, compaction=report)


def compact_copy(original: nn.Module, arguments: Arguments, *, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """Return the compacted network, or the original if it cannot be compacted, and notes for the user.

    What nothing reads is removed in place, and the result is of the class of the original. If constants can be folded
    beyond that, the network is rebuilt from a trace.
    """
    args, kwargs = arguments
    current, notes = original, list[str]()
    while True:
        smaller, left = _without_unread(current, arguments)
        notes = left if current is original else notes
        if kwargs:
            return smaller, notes
        try:
            rebuilt, others = _compact_in_float64(smaller, args, fixed_size)
        except UnsupportedNetworkError:
            return smaller, notes
        if _parameter_count(rebuilt) >= _parameter_count(smaller):
            return smaller, notes
        current, notes = rebuilt, others  # in which nothing may read what was read before


@torch.no_grad()
def _without_unread(original: nn.Module, arguments: Arguments) -> tuple[nn.Module, list[str]]:
    """Remove the channels that nothing reads from a copy."""
    try:
        graph = ChannelGraph.of(original, *arguments)
        gone = unread(original, graph)
        if not bool(gone.any()):
            return original, []
        trial = Trial(original, graph, *arguments)
    except UnsupportedNetworkError as error:
        return original, [f"nothing was removed: {error}"]
    best = trial.largest(gone)
    smaller = trial.smaller(best) if bool(best.any()) else None
    return smaller or original, trial.notes(gone, best)


def _compact_in_float64(
    original: nn.Module, example: tuple[Tensor, ...], fixed_size: bool
) -> tuple[nn.Module, list[str]]:
    """Compact and verify in float64, convert to the original dtypes, and verify again.

    So the only rounding errors of the result are those of the original dtypes. A network that does not work in float64,
    for example because it depends on the dtypes of its tensors, is compacted in its own dtypes.
    """
    check = EquivalenceCheck(original, example)
    if (converted := _to_float64(original, example)) is not None:
        try:
            compacted, notes = _compact_fully(EquivalenceCheck(*converted), fixed_size)
            check.verify(_to_original_dtypes(original, compacted))
        except UnsupportedNetworkError:
            pass
        else:
            return compacted, notes
    return _compact_fully(check, fixed_size)


def _compact_fully(check: EquivalenceCheck, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """Return the smallest network that passes the check."""
    model, example = check.model, check.example
    first, notes = _one_pass(model, example, fixed_size=False)
    compacted = _repeat_passes(first, example, fixed_size=False)
    check.verify(compacted)
    if fixed_size:
        try:
            starts = (compacted, _one_pass(model, example, fixed_size=True)[0])
            fixed = [_repeat_passes(start, example, fixed_size=True) for start in starts]
            # Channels that vary at the borders only are replaced by stored maps, which may be large.
            allowed = (each for each in fixed if _stored_numbers(each) <= _stored_numbers(model))
            smallest = min((compacted, *allowed), key=_parameter_count)
            check.verify(smallest)
        except UnsupportedNetworkError as error:
            notes.append(f"nothing more was removed for inputs of a fixed size: {error}")
        else:
            compacted = smallest
    return compacted, notes


def _repeat_passes(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> nn.Module:
    """Repeat passes until the network does not get smaller.

    Most networks need one pass. A grouped convolution of which one group is left is an ungrouped one in the next pass.
    """
    while True:
        compacted, _ = _one_pass(model, example, fixed_size=fixed_size)
        if _parameter_count(compacted) >= _parameter_count(model):
            return model
        model = compacted


@torch.no_grad()
def _one_pass(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """Trace, analyse and rebuild the network once."""
    traced = trace(model, example)
    analysis, notes = analyze(traced)
    if fixed_size:
        analysis = analysis.for_fixed_size(values_for_one_example(traced, example))
    builder = GraphBuilder(traced, analysis, analysis.required_channels())
    try:
        return builder.build().eval(), [*traced.notes, *notes]
    except Exception as error:  # torch.fx generates Python code, which can fail for names that the user chose
        raise UnsupportedNetworkError(f"the compacted network could not be generated ({first_line(error)})") from error


@torch.no_grad()
def _to_float64(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]] | None:
    """Return the network and the example in float64, or None if the network does not run so."""
    try:
        converted = independent_copy(model).double()
        inputs = tuple(each.double() if each.is_floating_point() else each for each in example)
        converted(*copy.deepcopy(inputs))
    except Exception:  # the user's code may raise any error, and not every device supports float64
        return None
    return converted, inputs


def _to_original_dtypes(original: nn.Module, compacted: nn.Module) -> nn.Module:
    """Convert every tensor to its original dtype, and tensors of inserted modules to that of the first parameter."""
    tensors = (*original.named_parameters(remove_duplicate=False), *original.named_buffers(remove_duplicate=False))
    dtypes = {name: tensor.dtype for name, tensor in tensors}
    default = next((each.dtype for each in original.parameters()), torch.float32)
    for prefix, module in compacted.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(dtypes.get(f"{prefix}.{name}".lstrip("."), default))
    return compacted


def _parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _stored_numbers(model: nn.Module) -> int:
    return _parameter_count(model) + sum(buffer.numel() for buffer in model.buffers())


def _layer_changes(before: nn.Module, after: nn.Module) -> Iterator[LayerChange]:
    modules_after = dict(after.named_modules())
    for name, module in before.named_modules():
        if _is_layer(module):
            found = modules_after.get(name)
            # If the network reads a weight without calling the layer, torch.fx keeps the weight in a plain module.
            keeps_weight = found is not None and getattr(found, "weight", None) is not None
            sizes_after = _sizes(module if keeps_weight and not _is_layer(found) else found)
            yield LayerChange(name, *zip(_sizes(module), sizes_after, strict=True))


def _is_layer(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear | _ConvNd)


def _sizes(module: nn.Module | None) -> tuple[int, int, int]:
    """Return the numbers of inputs, outputs and weights."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, module.weight.numel()
    if isinstance(module, _ConvNd):
        return module.in_channels, module.out_channels, module.weight.numel()
    return 0, 0, 0


def attach_attributes(model: nn.Module, **attributes: Any) -> nn.Module:
    """Set attributes on a network, except those whose name it uses already; return the network."""
    taken = {*model._modules, *model._parameters, *model._buffers, *dir(type(model))}
    attributes = {name: value for name, value in attributes.items() if name not in taken}
    if isinstance(model, fx.GraphModule):
        model.meta[PRESERVED] = {**model.meta.get(PRESERVED, {}), **attributes}  # or deepcopy would lose them
    for name, value in attributes.items():
        setattr(model, name, value)
    return model

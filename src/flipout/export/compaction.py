"""Lossless compaction: the same network with fewer channels.

Channels that nothing reads are removed in place, from a copy of the network. Layers that read constant channels are
changed so that they do not, and those channels are removed too. Both are repeated until nothing more can be removed,
and what is left is compared with the original.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY as PRESERVED
from torch.nn.modules.conv import _ConvNd

from ..channels.comparison import Arguments, NamedExample, as_arguments
from ..channels.constants import without_constants
from ..channels.copies import UnsupportedNetworkError, evaluation_copy
from ..channels.graph import ChannelGraph
from ..channels.scatter import with_scattered_channels
from ..channels.trial import Comparison, Trial, unread
from ..text_table import table


@dataclass(frozen=True)
class LayerChange:
    """The inputs, outputs and weights (zeros included) of a layer, each before and after."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weights: tuple[int, int]


@dataclass(frozen=True)
class CompactionReport:
    """The change of every Linear, convolution and recurrent layer; prints as a table."""

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


def compact(model: nn.Module, example_input: NamedExample) -> nn.Module:
    """Return a network with fewer channels and, in evaluation mode, the same outputs up to rounding.

    Every channel that is never read, or that is constant and can be folded into the layers that follow, is removed from
    a copy of the network, which keeps its class, its attributes and the names of its parameters. A layer without a bias
    may get one. The outputs are the same for calls like the example: with the same arguments, and inputs of any values,
    batch size and, if the network accepts them, other sizes. The result has two more attributes: `notes` lists what was
    left unchanged and why, and `compaction` reports the change of each layer.

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
    """
    arguments, original = as_arguments(example_input), evaluation_copy(model)
    compacted, notes = compact_copy(original, arguments)
    report = CompactionReport(tuple(_layer_changes(original, compacted)))
    return attach_attributes(compacted, notes=notes, compaction=report)


def compact_copy(original: nn.Module, arguments: Arguments) -> tuple[nn.Module, list[str]]:
    """Return the compacted network, or the original if it cannot be compacted, and notes for the user."""
    check = Comparison(original, *arguments)
    smaller, notes = _without_unread(original, arguments)
    unread_only, before = smaller, _parameter_count(original) + 1
    try:
        while _parameter_count(smaller) < before:
            before = _parameter_count(smaller)
            for change in (without_constants, with_scattered_channels):
                if (changed := change(smaller, *arguments)) is None:
                    continue
                found, _ = _without_unread(changed, arguments)  # in which nothing may read what was read before
                check.verify(found)
                smaller = found if _parameter_count(found) < _parameter_count(smaller) else smaller
    except UnsupportedNetworkError as error:
        notes = notes or [f"constant channels stay: {error}"]
    omitted = "" if smaller is unread_only else _omitted(original, *arguments)
    return smaller, [*notes, *([f"constant channels were removed for calls without {omitted}"] if omitted else [])]


def _omitted(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments that a call leaves out."""
    signature = inspect.signature(network.forward)
    given = signature.bind(*args, **kwargs).arguments
    named = [
        name for name, each in signature.parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return ", ".join(name for name in named if name not in given)


@torch.no_grad()
def _without_unread(original: nn.Module, arguments: Arguments) -> tuple[nn.Module, list[str]]:
    """Remove the channels that nothing reads from a copy."""
    try:
        graph = ChannelGraph.of(original, *arguments, residual=True)
        gone = unread(original, graph, *arguments)
        if not bool(gone.any()):
            return original, []
        trial = Trial(original, graph, *arguments)
    except UnsupportedNetworkError as error:
        return original, [f"nothing was removed: {error}"]
    best = trial.largest(gone)
    smaller = trial.smaller(best) if bool(best.sets.any()) else None
    if smaller is not None and _lost_groups(original, smaller):
        smaller, _ = _without_unread(smaller, arguments)
    return smaller or original, trial.notes(gone, best.sets)


def _lost_groups(before: nn.Module, after: nn.Module) -> bool:
    """Whether a convolution with groups has one group left. Then its channels can go one by one."""
    left = {name for name, module in after.named_modules() if isinstance(module, _ConvNd) and module.groups == 1}
    return any(
        isinstance(module, _ConvNd) and module.groups > 1 and name in left for name, module in before.named_modules()
    )


def _parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _layer_changes(before: nn.Module, after: nn.Module) -> Iterator[LayerChange]:
    modules_after = dict(after.named_modules())
    for name, module in before.named_modules():
        if isinstance(module, nn.Linear | _ConvNd | nn.RNNBase):
            found = modules_after[name]
            layer = found[0] if isinstance(found, nn.Sequential) else found  # with its channels scattered
            yield LayerChange(name, *zip(_sizes(module), _sizes(layer), strict=True))


def _sizes(module: nn.Module) -> tuple[int, int, int]:
    """Return the numbers of inputs, outputs and weights."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, module.weight.numel()
    if isinstance(module, nn.RNNBase):
        weights = sum(weight.numel() for weight in module.parameters() if weight.ndim > 1)
        return module.input_size, module.proj_size or module.hidden_size, weights
    assert isinstance(module, _ConvNd)
    return module.in_channels, module.out_channels, module.weight.numel()


def attach_attributes(model: nn.Module, **attributes: Any) -> nn.Module:
    """Set attributes on a network, except those whose name it uses already; return the network."""
    taken = {*model._modules, *model._parameters, *model._buffers, *dir(type(model))}
    attributes = {name: value for name, value in attributes.items() if name not in taken}
    if isinstance(model, fx.GraphModule):
        model.meta[PRESERVED] = {**model.meta.get(PRESERVED, {}), **attributes}  # or deepcopy would lose them
    for name, value in attributes.items():
        setattr(model, name, value)
    return model

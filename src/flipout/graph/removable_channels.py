"""Which channels a network can lose while it is trained: those that nothing reads, by the masks alone.

A channel without readers has no influence on the loss, in training mode too, and its gradient is exactly 0. So the rest
of the network trains on as if the channel were there. Channels that are constant, because all weights that produce them
are pruned, stay: the bias of their norm is still trained, and at borders with zero padding they are not constant.

Modules are made smaller in place and the code of the network stays as it is. So two tensors that are added must lose
the same channels, and an operation that is not known keeps all channels of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .analysis import ChannelAnalysis
from .live_masks import MaskedLayerRule, without_values
from .live_paths import analyze_network
from .rules.base_rules import ChannelwiseRule, Rule
from .rules.batch_norm import BatchNormRule
from .rules.combinations import ConcatenationRule, ElementwiseRule, SumRule
from .rules.constant_folding import inputs_read_by
from .rules.layers_with_weights import WeightedLayerRule
from .rules.reshaping import FlattenRule, SizeQueryRule

Indices = tuple[Tensor | None, ...]
"""For each dimension of a tensor the indices that stay; None for all of them."""

RESHAPES = {torch.reshape, "view", "reshape"}
"""Operations that name the sizes of their result, which may be written into the code of the network."""


@dataclass(frozen=True)
class Remainder:
    """What is left of a network.

    Args:
        tensors: the indices that stay of each parameter and buffer that loses channels, by name.
        multiply_adds: the multiply-adds of all layers for one example, and those that are left.
    """

    tensors: dict[str, Indices]
    multiply_adds: tuple[int, int]

    @property
    def share(self) -> float:
        """The share of the multiply-adds that is left."""
        before, after = self.multiply_adds
        return after / before if before else 1.0


class RemovableChannels:
    """Finds the channels that a network can lose. The network is traced once, and masks are looked at after that.

    Args:
        model: the network, with all of its channels; it is not changed.
        example: the inputs of a call, with any batch size.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        with torch.random.fork_rng(devices={each.device for each in example if each.is_cuda}):
            network = analyze_network(model, example)
        self.notes = network.notes
        self._layers: dict[str, _Layer] = {}
        self._norms: dict[str, fx.Node] = {}
        for node, rule in network.analysis.rules.items():
            name, shape = f"{network.name(node)}.".lstrip("."), network.traced.shapes.get(node, ())
            if isinstance(rule, WeightedLayerRule):
                places = math.prod(size for axis, size in enumerate(shape) if axis not in (0, rule.axis))
                self._layers[name] = _Layer(MaskedLayerRule(rule), rule.weights.shape[2] * places)
            elif isinstance(rule, BatchNormRule):
                self._norms[name] = node
        self._ties = _Ties(network.analysis, [layer.rule for layer in self._layers.values()])
        self._shapes = {name: tensor.shape for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def __deepcopy__(self, memo: dict[int, Any]) -> RemovableChannels:
        return self  # it holds no weights

    @torch.no_grad()
    def remainder(self, connections: Mapping[str, Tensor]) -> Remainder:
        """Find what is left of the network.

        Args:
            connections: for each weight that is pruned, by its name, its result of `connections_of`; others count as a
                whole.
        """
        for name, layer in self._layers.items():
            matrix = connections.get(f"{name}weight")
            shape = layer.rule.connected.shape
            layer.rule.connected = torch.ones(shape).bool() if matrix is None else matrix.reshape(shape).cpu()
        kept = self._ties.solve()
        tensors = {n: where for n, where in self._tensors(kept) if n in self._shapes and where != (None,) * len(where)}
        return Remainder(tensors, self._multiply_adds(kept))

    @property
    def weights(self) -> dict[str, torch.Size]:
        """The weights of the layers that are analysed, and their shapes."""
        names = [f"{name}weight" for name in self._layers]
        return {name: self._shapes[name] for name in names if name in self._shapes}

    def connections_of(self, name: str, mask: Tensor, where: Indices) -> Tensor | None:
        """Which inputs of its group each output of a layer reads: (outputs, inputs). None if it is not analysed.

        Args:
            name: the name of the weight.
            mask: the mask of the weight, or of the part of it that is left.
            where: the indices of that part.
        """
        layer = self._layers.get(name.removesuffix("weight"))
        if layer is None:
            return None
        # A maximum of bytes: torch reduces booleans several times more slowly.
        read = mask if mask.ndim < 3 else mask.view(torch.uint8).flatten(2).amax(2).view(torch.bool)
        for dimension, index in enumerate(where[:2]):
            if index is not None:
                full = read.new_zeros(
                    [*read.shape[:dimension], self._shapes[name][dimension], *read.shape[dimension + 1 :]]
                )
                read = full.index_copy_(dimension, index.to(read.device), read)
        return read.T if layer.rule.inputs_first else read

    def _tensors(self, kept: Mapping[fx.Node, Tensor]) -> Iterator[tuple[str, Indices]]:
        for name, layer in self._layers.items():
            outputs = _index(kept[layer.rule.node])
            inputs = _index(self._ties.of_source(layer.rule, 0, kept)) if layer.rule.groups == 1 else None
            first = (inputs, outputs) if layer.rule.inputs_first else (outputs, inputs)
            yield f"{name}weight", (*first, *[None] * (len(self._shapes[f"{name}weight"]) - 2))
            yield f"{name}bias", (outputs,)
        for name, node in self._norms.items():
            for part in ("weight", "bias", "running_mean", "running_var"):
                yield f"{name}{part}", (_index(kept[node]),)

    def _multiply_adds(self, kept: Mapping[fx.Node, Tensor]) -> tuple[int, int]:
        before = after = 0
        for layer in self._layers.values():
            groups, outputs, inputs = layer.rule.connected.shape
            left = int(self._ties.of_source(layer.rule, 0, kept).sum()) if groups == 1 else inputs
            before += groups * outputs * inputs * layer.places
            after += int(kept[layer.rule.node].sum()) * left * layer.places
        return before, after


@dataclass(frozen=True)
class _Layer:
    """A Linear or convolution layer: its rule, and how often each pair of an input and an output is multiplied."""

    rule: MaskedLayerRule
    places: int


class _Ties:
    """Which channels of the tensors of a network stay, if tensors that belong together lose the same ones."""

    def __init__(self, analysis: ChannelAnalysis, layers: Sequence[MaskedLayerRule]) -> None:
        masked = {rule.node: rule for rule in layers}
        self._rules = {node: masked.get(node) or without_values(rule) for node, rule in analysis.rules.items()}
        self._axes = {node: channels.axis for node, channels in analysis.channels.items()}
        self._sizes = {node: len(channels.constants) for node, channels in analysis.channels.items()}
        self._source_sizes = analysis.source_sizes

    def solve(self) -> dict[fx.Node, Tensor]:
        """Start with what is read, and add channels until all tensors fit together."""
        kept = {node: torch.zeros(size, dtype=torch.bool) for node, size in self._sizes.items()}
        before: dict[fx.Node, int] = {}
        while before != (now := {node: int(flags.sum()) for node, flags in kept.items()}):
            before = now
            for node in (*reversed(self._rules), *self._rules):
                self._visit(node, kept)
        return kept

    def _visit(self, node: fx.Node, kept: dict[fx.Node, Tensor]) -> None:
        """Make one operation consistent: what it reads, what it computes, and what is left of both."""
        rule = self._rules[node]
        if len(kept[node]) and not kept[node].any():
            kept[node] = kept[node].clone()
            kept[node][0] = True  # a tensor cannot be without channels
        if isinstance(rule, MaskedLayerRule):
            self._visit_layer(rule, kept)
        elif isinstance(rule, FlattenRule) and self._fits_any_size(rule):
            per_channel = kept[node].reshape(-1, rule.positions).any(1)
            per_channel |= self.of_source(rule, 0, kept)
            self._mark(rule, 0, per_channel, kept)
            kept[node] = per_channel.repeat_interleave(rule.positions)
        elif isinstance(rule, ConcatenationRule):
            parts = [
                each | self.of_source(rule, number, kept)
                for number, each in enumerate(torch.split(kept[node], rule.sizes))
            ]
            for number, flags in enumerate(parts):
                self._mark(rule, number, flags, kept)
            kept[node] = torch.cat([self.of_source(rule, number, kept) for number in range(len(parts))])
        elif isinstance(rule, SumRule | ElementwiseRule | ChannelwiseRule) and self._keeps_apart(rule):
            flags = kept[node]
            read = [number for number, axis in enumerate(rule.axes) if axis is not None]
            for number in read:
                flags = flags | self.of_source(rule, number, kept)
            for number in read:
                self._mark(rule, number, flags, kept)
            for number in range(len(rule.sources)):
                if number not in read:
                    self._keep_all(rule.sources[number], kept)
            kept[node] = flags
        elif not isinstance(rule, SizeQueryRule):
            kept[node] = torch.ones_like(kept[node])
            for source in rule.sources:
                self._keep_all(source, kept)

    def _visit_layer(self, rule: MaskedLayerRule, kept: dict[fx.Node, Tensor]) -> None:
        outputs, source = kept[rule.node], self.of_source(rule, 0, kept)
        if rule.groups == 1:
            self._mark(rule, 0, inputs_read_by(rule.connected, outputs), kept)
            return
        # Of a layer with groups, whole groups are removed.
        groups, size, inputs = rule.connected.shape
        used = outputs.reshape(groups, size).any(1) | source.reshape(groups, inputs).any(1)
        kept[rule.node] = used.repeat_interleave(size)
        self._mark(rule, 0, used.repeat_interleave(inputs), kept)

    def _fits_any_size(self, rule: FlattenRule) -> bool:
        """Whether a reshape takes its sizes from the tensor itself."""
        node = rule.node
        sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
        open_sizes = bool(sizes) and all(isinstance(size, fx.Node) or size == -1 for size in sizes)
        return node.target not in RESHAPES or open_sizes

    def _keeps_apart(self, rule: Rule) -> bool:
        """Whether the channels of the result are known, and a reshape does not name their number."""
        return self._axes[rule.node] is not None and rule.node.target not in RESHAPES

    def of_source(self, rule: Rule, number: int, kept: Mapping[fx.Node, Tensor]) -> Tensor:
        """The flags of a source, along the axis that the rule reads; all if nothing is known along it."""
        source, axis = rule.sources[number], rule.axes[number]
        if axis == self._axes[source]:
            return kept[source]
        return torch.ones(self._source_sizes[rule.node][number], dtype=torch.bool)

    def _mark(self, rule: Rule, number: int, flags: Tensor, kept: dict[fx.Node, Tensor]) -> None:
        source, axis = rule.sources[number], rule.axes[number]
        if axis == self._axes[source]:
            kept[source] = kept[source] | flags
        else:
            self._keep_all(source, kept)

    def _keep_all(self, source: fx.Node, kept: dict[fx.Node, Tensor]) -> None:
        kept[source] = torch.ones_like(kept[source])


def _index(flags: Tensor) -> Tensor | None:
    return None if bool(flags.all()) else flags.nonzero().flatten()

"""Which channels a network can lose while it is trained: those that nothing reads, by the masks alone.

A channel without readers has no influence on the loss, in training mode too, and its gradient is exactly 0. So the rest
of the network trains on as if the channel were there. Channels that are constant, because all weights that produce them
are pruned, stay: the bias of their norm is still trained, and at borders with zero padding they are not constant.

Modules are made smaller in place and the code of the network stays as it is. So two tensors that are added must lose
the same channels, and an operation that is not known keeps all channels of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from .analysis import analyze_network
from .channel_ties import FIXED, ChannelSets
from .live_paths import rows_read
from .rules.channelwise import BatchNormRule
from .rules.layers import WeightedLayerRule, inputs_read_by

Indices = tuple[Tensor | None, ...]
"""For each dimension of a tensor the indices that stay; None for all of them."""


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


@dataclass(frozen=True)
class _Layer:
    """A Linear or convolution layer.

    Args:
        outputs: the set of each output channel, a number.
        inputs: the set of each input channel; None with groups, whose inputs belong to the sets of their outputs.
        group_inputs: the number of inputs of a group.
        inputs_first: whether the weight is stored with the inputs first.
        places: how often each pair of an input and an output is multiplied.
    """

    outputs: Tensor
    inputs: Tensor | None
    group_inputs: int
    inputs_first: bool
    places: int


class RemovableChannels:
    """Finds the channels that a network can lose. The network is traced once, and masks are looked at after that.

    Args:
        model: the network, with all of its channels; it is not changed.
        example: the inputs of a call, with any batch size.
    """

    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        network = analyze_network(model, example)
        sets = ChannelSets(network.analysis, code_stays=True)
        self.notes, self._sets = network.notes, len(sets)
        self._layers: dict[str, _Layer] = {}
        self._norms: dict[str, Tensor] = {}
        for node, rule in network.analysis.rules.items():
            name, shape = f"{network.name(node)}.".lstrip("."), network.traced.shapes.get(node, ())
            if isinstance(rule, WeightedLayerRule):
                inputs, (_, group_inputs, kernel) = sets.inputs_of(node), rule.weights.shape
                positions = math.prod(size for axis, size in enumerate(shape) if axis not in (0, rule.axis))
                self._layers[name] = _Layer(
                    _numbers(sets.of(node)),
                    None if inputs is None else _numbers(inputs),
                    group_inputs,
                    isinstance(rule.module, _ConvTransposeNd),
                    kernel * positions,
                )
            elif isinstance(rule, BatchNormRule):
                self._norms[name] = _numbers(sets.of(node))
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
        kept = self._kept_sets({name: matrix.cpu() for name, matrix in connections.items()})
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
            mask: the mask of the weight, or of what is left of it.
            where: the indices of what is left.
        """
        layer = self._layers.get(name.removesuffix("weight"))
        if layer is None:
            return None
        read = rows_read(mask, inputs_first=False)
        for dimension, index in enumerate(where[:2]):
            if index is not None:
                shape = [*read.shape[:dimension], self._shapes[name][dimension], *read.shape[dimension + 1 :]]
                read = read.new_zeros(shape).index_copy_(dimension, index.to(read.device), read)
        return read.T if layer.inputs_first else read

    def _kept_sets(self, connections: Mapping[str, Tensor]) -> Tensor:
        """Start with what is fixed, and add what is read until nothing is missing."""
        kept = torch.zeros(self._sets, dtype=torch.bool)
        kept[FIXED] = True
        layers = list(reversed(self._layers.items()))
        while True:
            before = int(kept.sum())
            for name, layer in layers:
                if layer.inputs is not None:
                    matrix, outputs = connections.get(f"{name}weight"), kept[layer.outputs]
                    read = outputs.any() if matrix is None else inputs_read_by(matrix[None], outputs)
                    kept[layer.inputs[read.expand(layer.inputs.shape)]] = True
            if int(kept.sum()) == before:
                empty = [layer.outputs for _, layer in layers if len(layer.outputs) and not kept[layer.outputs].any()]
                if not empty:
                    return kept
                kept[empty[0][0]] = True  # a tensor cannot be without channels

    def _tensors(self, kept: Tensor) -> Iterator[tuple[str, Indices]]:
        for name, layer in self._layers.items():
            outputs = _index(kept[layer.outputs])
            inputs = None if layer.inputs is None else _index(kept[layer.inputs])
            first = (inputs, outputs) if layer.inputs_first else (outputs, inputs)
            yield f"{name}weight", (*first, *[None] * (len(self._shapes[f"{name}weight"]) - 2))
            yield f"{name}bias", (outputs,)
        for name, channels in self._norms.items():
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                yield f"{name}{tensor}", (_index(kept[channels]),)

    def _multiply_adds(self, kept: Tensor) -> tuple[int, int]:
        before = after = 0
        for layer in self._layers.values():
            left = layer.group_inputs if layer.inputs is None else int(kept[layer.inputs].sum())
            before += len(layer.outputs) * layer.group_inputs * layer.places
            after += int(kept[layer.outputs].sum()) * left * layer.places
        return before, after


def _numbers(sets: list[int]) -> Tensor:
    return torch.tensor(sets, dtype=torch.long)  # also if there are none


def _index(flags: Tensor) -> Tensor | None:
    return None if bool(flags.all()) else flags.nonzero().flatten()

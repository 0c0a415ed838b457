"""Live paths: which weights lie on a path from the input of a network to its output.

`effective_weights` counts those of a network as it is. `LivePaths` finds the dead ones under masks. It traces the
network once. After that, masks are reduced to which output channel reads which input channel, and two passes over the
graph mark what depends on the input and what the output depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList

from ..modules import plain_name, unwrapped
from .analysis import AnalyzedNetwork, ChannelAnalysis, analyze_network
from .channels import Channels
from .comparison import Example, as_example
from .copies import UnsupportedNetworkError
from .rules.base import ChannelwiseRule, Rule
from .rules.layers import WeightedLayerRule, inputs_read_by, outputs_reading


@dataclass(frozen=True)
class EffectiveWeights:
    """Counts of the weights that can be pruned: all of them, those that are not zero, and the effective ones.

    The weights of Linear and convolution modules count, and the matrices of every other class of modules in which one
    has exact zeros, such as an `LSTM` that was pruned with `include=`.

    A nonzero weight is effective if its input channel depends on the input of the network, and the output of the
    network depends on its output channel.

    Args:
        prunable: all weights, zeros included.
        nonzero: the weights that are not zero.
        effective: the nonzero weights on a live path.
        layers: (nonzero, effective) for each weight tensor, by name.
        notes: what could not be analysed. There every nonzero weight counts as effective.
    """

    prunable: int
    nonzero: int
    effective: int
    layers: dict[str, tuple[int, int]]
    notes: tuple[str, ...] = ()

    @property
    def nominal_sparsity(self) -> float:
        return 1 - self.nonzero / self.prunable if self.prunable else 0.0

    @property
    def effective_sparsity(self) -> float:
        return 1 - self.effective / self.prunable if self.prunable else 0.0


def effective_weights(
    model: nn.Module, example_input: Example, is_pruned: Callable[[Tensor], bool] = lambda _: False
) -> EffectiveWeights:
    """Count the weights on a live path, channel by channel, for the network in evaluation mode.

    Args:
        model: the network; it is not changed.
        example_input: the inputs that the network is called with.
        is_pruned: whether a weight counts that belongs to no Linear or convolution module and has no zeros.
    """
    return count_effective(model, as_example(example_input), prunable_weights(model, is_pruned))


@torch.no_grad()
def count_effective(
    network: nn.Module, example: tuple[Tensor, ...], weights: Mapping[tuple[str, ...], Tensor]
) -> EffectiveWeights:
    """Count the weights on a live path. The network may be a copy of the one that the weights belong to."""
    live, targets = dict[str, int](), [""]
    try:
        analyzed = analyze_network(network, example)
        live, notes = _live_weights(analyzed), analyzed.notes
        used = (node for node in analyzed.traced.graph.nodes if node.op in ("call_module", "get_attr"))
        targets = [analyzed.name(node) for node in used]
    except UnsupportedNetworkError as error:
        notes = (str(error),)
    layers: dict[str, tuple[int, int]] = {}
    for names, tensor in weights.items():
        nonzero = int(tensor.count_nonzero())
        # A weight that is used in several places is not analysed, so at most one of its names is found.
        unanalysed = nonzero if any(_is_used(name, targets) for name in names) else 0
        layers[names[0]] = nonzero, next((live[name] for name in names if name in live), unanalysed)
    prunable = sum(tensor.numel() for tensor in weights.values())
    nonzero, effective = (sum(pair[k] for pair in layers.values()) for k in (0, 1))
    return EffectiveWeights(prunable, nonzero, effective, layers, notes)


def _live_weights(network: AnalyzedNetwork) -> dict[str, int]:
    """For each layer, the number of nonzero weights between input-dependent inputs and live outputs."""
    live_channels, live = network.analysis.live_channels(), {}
    for node, rule in network.analysis.rules.items():
        if isinstance(rule, WeightedLayerRule):
            inputs = network.analysis.inputs(rule)[0].input_dependent.reshape(rule.groups, 1, -1)
            outputs = live_channels.get(node, torch.zeros(len(rule.weights), dtype=torch.bool))
            between = inputs & outputs.reshape(rule.groups, -1, 1)
            live[network.weight_name(node)] = int(((rule.weights != 0).sum(2).reshape(between.shape) * between).sum())
    return live


def _is_used(name: str, targets: Sequence[str]) -> bool:
    """Whether a weight belongs to one of the modules and tensors that a network calls and reads."""
    sources = f"{name.rpartition('.')[0]}.parametrizations".lstrip(".")  # what a parametrized weight is computed from
    return any(_is_within(name, target) or _is_within(target, sources) for target in targets)


def _is_within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


@torch.no_grad()
def prunable_weights(
    model: nn.Module, is_pruned: Callable[[Tensor], bool] = lambda _: False
) -> dict[tuple[str, ...], Tensor]:
    """The weights of a network that count as prunable, in the order of `named_parameters()`, by all of their names.

    These are the weights of Linear and convolution modules, unless they are tied to a parameter of another module; the
    weights for which `is_pruned` is true; and all matrices of each other class of modules, such as `LSTM` or
    `Embedding`, if one of them has exact zeros. All-zero tensors and padding rows of embeddings do not count as pruned.
    """
    uses: dict[int, list[_Use]] = {}
    for prefix, module in unwrapped(model).named_modules(remove_duplicate=False):
        own = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
        if isinstance(module, nn.Linear | _ConvNd) and "weight" not in own:  # parametrized, or not a parameter
            own["weight"] = module.weight
        for name, tensor in own.items():
            uses.setdefault(id(tensor), []).append(_Use(f"{prefix}.{name}".lstrip("."), module, tensor))
    pruned_classes = {type(use.module) for tied in uses.values() for use in tied if _looks_pruned(use)}
    return {
        tuple(plain_name(use.name) for use in tied): tied[0].tensor
        for tied in uses.values()
        if _belongs_to_layers(tied)
        or is_pruned(tied[0].tensor)
        or any(use.tensor.ndim > 1 and type(use.module) in pruned_classes for use in tied)
    }


@dataclass(frozen=True)
class _Use:
    """A tensor in a module. A tied tensor has several."""

    name: str
    module: nn.Module
    tensor: Tensor


def _belongs_to_layers(tied: list[_Use]) -> bool:
    """Whether a tensor is the weight of Linear and convolution modules, and nothing else."""
    uses = [use for use in tied if not isinstance(use.module, ParametrizationList)]
    names = {use.name.rpartition(".")[2] for use in uses}
    return names == {"weight"} and all(isinstance(use.module, nn.Linear | _ConvNd) for use in uses)


def _looks_pruned(use: _Use) -> bool:
    """Whether a matrix of a module that is not Linear or a convolution has some exact zeros, but not only."""
    # A parametrization has the tensors that a layer's weight is computed from, and that weight counts already.
    if isinstance(use.module, nn.Linear | _ConvNd | ParametrizationList) or use.tensor.ndim < 2:
        return False
    tensor = use.tensor
    if isinstance(use.module, nn.Embedding | nn.EmbeddingBag) and use.module.padding_idx is not None:
        tensor = torch.cat([tensor[: use.module.padding_idx], tensor[use.module.padding_idx + 1 :]])
    return 0 < int(tensor.count_nonzero()) < tensor.numel()


class LivePaths:
    """Finds the kept weights of a network that are on no live path from its input to its output.

    A kept weight is live if its input channel depends on the input of the network, and the output of the network
    depends on its output channel. Values do not matter: a kept weight, a norm or a bias counts, whatever it is. Where
    nothing is known all weights are live: behind operations that may mix channels, in layers that are called more than
    once or not at all, and for weights without a mask.

    Args:
        model: the network; it is not changed, and only what its graph looks like is kept.
        args: the positional arguments of a call, with any batch size.
        kwargs: its keyword arguments.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        network = analyze_network(model, args, kwargs)
        self._rules = {node: _without_values(rule) for node, rule in network.analysis.rules.items()}
        self._source_sizes = network.analysis.source_sizes
        self._layers = {
            name: rule
            for node, rule in self._rules.items()
            if isinstance(rule, MaskedLayerRule) and (name := network.weight_name(node)) in network.first_names
        }

    @torch.no_grad()
    def dead(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mark the kept weights that are on no live path. Weights without such ones are left out of the result.

        Args:
            masks: for each weight, by its name, a boolean tensor of its shape: True where it is kept.
        """
        layers = {name: rule for name, rule in self._layers.items() if name in masks}
        matrices = [rows_read(masks[name], rule.inputs_first) for name, rule in layers.items()]
        on_cpu = _moved(matrices, [torch.device("cpu")] * len(matrices))
        for rule, matrix in zip(layers.values(), on_cpu, strict=True):
            rule.connected = matrix.reshape(rule.connected.shape)
        analysis = self._analyze()
        live_outputs = analysis.live_channels()
        unused: dict[str, Tensor] = {}
        for name, rule in layers.items():
            inputs = analysis.inputs(rule)[0].input_dependent.reshape(rule.groups, 1, -1)
            outputs = live_outputs.get(rule.node)
            live = inputs & (torch.tensor(False) if outputs is None else outputs.reshape(rule.groups, -1, 1))
            if (between := rule.connected & ~live).any():
                unused[name] = between.flatten(0, 1).T if rule.inputs_first else between.flatten(0, 1)
        there = _moved(list(unused.values()), [masks[name].device for name in unused])
        return {
            name: (mask := masks[name]) & matrix.reshape(*matrix.shape, *(1,) * (mask.ndim - 2))
            for name, matrix in zip(unused, there, strict=True)
        }

    def _analyze(self) -> ChannelAnalysis:
        analysis = ChannelAnalysis(self._rules, {}, self._source_sizes)
        for node, rule in self._rules.items():
            channels = rule.propagate(analysis.inputs(rule))
            analysis.channels[node] = _channels(channels.axis, channels.input_dependent)
        return analysis


class MaskedLayerRule(Rule):
    """A Linear or convolution layer of which only the mask counts."""

    def __init__(self, layer: WeightedLayerRule) -> None:
        super().__init__(layer.node, layer.sources, layer.axes)
        self.axis, self.groups = layer.axis, layer.groups
        self.inputs_first = isinstance(layer.module, _ConvTransposeNd)
        self.connected = torch.ones_like(layer.connected)
        """Whether an output of a group reads an input of that group: (groups, outputs, inputs)."""

    def propagate(self, inputs: Sequence[Channels]) -> Channels:
        return _channels(self.axis, outputs_reading(self.connected, inputs[0].input_dependent))

    def influencing_inputs(self, inputs: Sequence[Channels], output: Channels, wanted: Tensor) -> list[Tensor | None]:
        return [inputs_read_by(self.connected, wanted & output.varies) & inputs[0].varies]


def _without_values(rule: Rule) -> Rule:
    """The same rule, without the numbers of the module that it belongs to."""
    if isinstance(rule, WeightedLayerRule):
        return MaskedLayerRule(rule)
    if isinstance(rule, ChannelwiseRule):
        return ChannelwiseRule(rule.node, rule.sources[0], rule.axes[0])
    return rule


def rows_read(mask: Tensor, inputs_first: bool) -> Tensor:
    """Which inputs of its group each output of a layer reads under a mask of its weight: (outputs, inputs)."""
    # A maximum of bytes: torch reduces booleans several times more slowly.
    read = mask if mask.ndim < 3 else mask.view(torch.uint8).flatten(2).amax(2).view(torch.bool)
    return read.T if inputs_first else read


def _channels(axis: int | None, input_dependent: Tensor) -> Channels:
    """Channels whose constants are not known. One stands for all of them: a factor of zero would hide a channel."""
    constants = torch.where(input_dependent, torch.nan, 1.0).double()
    return Channels(axis, constants, input_dependent)


def _moved(tensors: Sequence[Tensor], devices: Sequence[torch.device]) -> list[Tensor]:
    """Each tensor on its device, with one transfer for each pair of devices."""
    moved, ways = list(tensors), [(tensor.device, device) for tensor, device in zip(tensors, devices, strict=True)]
    for way in {(here, there) for here, there in ways if here != there}:
        places = [place for place, each in enumerate(ways) if each == way]
        flat = torch.cat([tensors[place].flatten() for place in places]).to(way[1])
        for place, part in zip(places, torch.split(flat, [tensors[place].numel() for place in places]), strict=True):
            moved[place] = part.reshape(tensors[place].shape)
    return moved

"""Which kept weights lie on no live path from the input to the output, from the masks alone.

The network is traced once. After that, masks are reduced to which output channel reads which input channel, and two
passes over the graph mark what depends on the input and what the output depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..modules import plain_name, unwrapped
from .analysis import ChannelAnalysis
from .channels import Channels
from .live_paths import analyze_network
from .rules.base_rules import ChannelwiseRule, Rule
from .rules.constant_folding import inputs_read_by, outputs_reading
from .rules.layers_with_weights import WeightedLayerRule


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

    def connections(self, mask: Tensor) -> Tensor:
        """Which outputs read which inputs under a mask of the weight."""
        # A maximum of bytes: torch reduces booleans several times more slowly.
        read = mask if mask.ndim < 3 else mask.view(torch.uint8).flatten(2).amax(2).view(torch.bool)
        return (read.T if self.inputs_first else read).reshape(self.connected.shape)

    def spread(self, between: Tensor, mask: Tensor) -> Tensor:
        """Give (groups, outputs, inputs) the axes of the weight, to be combined with its mask."""
        matrix = between.flatten(0, 1)
        matrix = matrix.T if self.inputs_first else matrix
        return matrix.reshape(*matrix.shape, *(1,) * (mask.ndim - 2))


class LivePaths:
    """Finds the kept weights of a network that are on no live path from its input to its output.

    A kept weight is live if its input channel depends on the input of the network, and the output of the network
    depends on its output channel. Values do not matter: a kept weight, a norm or a bias counts, whatever it is. Where
    nothing is known all weights are live: behind operations that may mix channels, in layers that are called more than
    once or not at all, and for weights without a mask.

    Args:
        model: the network; it is not changed, and only what its graph looks like is kept.
        example: the inputs of a call, with any batch size.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        # A network that draws random numbers must not change those of the training.
        with torch.random.fork_rng(devices={each.device for each in example if each.is_cuda}):
            network = analyze_network(unwrapped(model), example)
        self._rules = {node: without_values(rule) for node, rule in network.analysis.rules.items()}
        self._source_sizes = network.analysis.source_sizes
        names = first_names(unwrapped(model))
        self._layers = {
            names[network.weight_name(node)]: rule
            for node, rule in self._rules.items()
            if isinstance(rule, MaskedLayerRule) and network.weight_name(node) in names
        }

    @torch.no_grad()
    def dead(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mark the kept weights that are on no live path. Weights without such ones are left out of the result.

        Args:
            masks: for each weight, by its name, a boolean tensor of its shape: True where it is kept.
        """
        layers = {name: rule for name, rule in self._layers.items() if name in masks}
        matrices = _on_cpu([rule.connections(masks[name]) for name, rule in layers.items()])
        for rule, connected in zip(layers.values(), matrices, strict=True):
            rule.connected = connected
        analysis = self._analyze()
        live_outputs = analysis.live_channels()
        unused: dict[str, Tensor] = {}
        for name, rule in layers.items():
            inputs = analysis.inputs(rule)[0].input_dependent.reshape(rule.groups, 1, -1)
            outputs = live_outputs.get(rule.node)
            live = inputs & (torch.tensor(False) if outputs is None else outputs.reshape(rule.groups, -1, 1))
            if (between := rule.connected & ~live).any():
                unused[name] = between
        return {
            name: masks[name] & layers[name].spread(between, masks[name])
            for name, between in zip(unused, _to_devices(unused, masks), strict=True)
        }

    def _analyze(self) -> ChannelAnalysis:
        analysis = ChannelAnalysis(self._rules, {}, self._source_sizes)
        for node, rule in self._rules.items():
            channels = rule.propagate(analysis.inputs(rule))
            analysis.channels[node] = _channels(channels.axis, channels.input_dependent)
        return analysis


def without_values(rule: Rule) -> Rule:
    """The same rule, without the numbers of the module that it belongs to."""
    if isinstance(rule, WeightedLayerRule):
        return MaskedLayerRule(rule)
    if isinstance(rule, ChannelwiseRule):
        return ChannelwiseRule(rule.node, rule.sources[0], rule.axes[0])
    return rule


def _channels(axis: int | None, input_dependent: Tensor) -> Channels:
    """Channels whose constants are not known. One stands for all of them: a factor of zero would hide a channel."""
    constants = torch.where(input_dependent, torch.nan, 1.0).double()
    return Channels(axis, constants, input_dependent)


def first_names(network: nn.Module) -> dict[str, str]:
    """For each name of a parameter, the first name of the same parameter, which a pruner uses."""
    first: dict[nn.Parameter, str] = {}
    return {
        plain_name(name): first.setdefault(parameter, plain_name(name))
        for name, parameter in network.named_parameters(remove_duplicate=False)
    }


def _on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU, with one transfer from each device."""
    here = list(tensors)
    for device in {tensor.device for tensor in tensors} - {torch.device("cpu")}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        flat = torch.cat([tensors[place].flatten() for place in places]).cpu()
        for place, part in zip(places, torch.split(flat, [tensors[place].numel() for place in places]), strict=True):
            here[place] = part.reshape(tensors[place].shape)
    return here


def _to_devices(matrices: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> list[Tensor]:
    """Each matrix on the device of its mask, with one transfer to each device."""
    there = dict(matrices)
    for device in {masks[name].device for name in matrices} - {torch.device("cpu")}:
        names = [name for name in matrices if masks[name].device == device]
        flat = torch.cat([matrices[name].flatten() for name in names]).to(device)
        for name, part in zip(names, torch.split(flat, [matrices[name].numel() for name in names]), strict=True):
            there[name] = part.reshape(matrices[name].shape)
    return list(there.values())

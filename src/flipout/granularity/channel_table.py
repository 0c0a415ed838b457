"""The channels of a network as units: which outputs and inputs of which layers belong to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..graph.channel_ties import FIXED, ChannelTies, LayerChannels, channel_ties
from ..graph.transformer_blocks import FeatureSet, feature_sets
from ..layers import Layer
from ..modules import is_transposed
from .granularity_setting import Reduction, accurate


@dataclass(frozen=True)
class ChannelTable:
    """Units, and the channels of each layer that belong to them.

    Args:
        units: the number of units.
        families: for each unit the number of its family. The units of a family are the channels of one tensor, such as
            the outputs of a layer, or of a residual stream. One of them always stays.
        outputs: for each layer, the unit of each output; `units` stands for an output that always stays.
        inputs: for each layer, the unit of each input; None for a convolution with groups, where a group is a unit.
        output_axes: for each layer, the axis of its weight that the outputs lie along.
        notes: what could not be divided into units.
    """

    units: int
    families: list[int]
    outputs: list[Tensor]
    inputs: list[Tensor | None]
    output_axes: list[int]
    notes: tuple[str, ...]

    def alive(self, masks: Sequence[Tensor]) -> Tensor:
        """The units that have a kept weight."""
        found = torch.zeros(self.units + 1, dtype=torch.bool)
        for number, mask in enumerate(masks):
            pairs = _pairs(mask)[:, :, 0].cpu()  # all weights between two channels are kept or pruned together
            for axis, units in self._axes(number):
                found[units[pairs.any(1 - axis)]] = True
        return found[: self.units]

    def masks(self, alive: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
        """The masks of weights: one is kept if the units of its output and its input are."""
        kept = torch.cat([alive, torch.ones(1, dtype=torch.bool)])
        result = []
        for number, layer in enumerate(layers):
            mask = torch.ones((1,) * layer.weight.ndim, dtype=torch.bool)
            for axis, units in self._axes(number):
                mask = mask & kept[units].view([-1 if i == axis else 1 for i in range(layer.weight.ndim)])
            result.append(mask.to(layer.weight.device).expand(layer.weight.shape).contiguous())
        return result

    def scores(
        self,
        score: Callable[[int], Tensor],
        masks: Sequence[Tensor | None],
        how: Reduction,
        sizes: Sequence[int],
        failed: Callable[[int], Exception],
    ) -> Tensor:
        """The score of each unit: the reduction over its weights of scores that are relative to their layer.

        The weights of a channel lie in several layers. Their scores are comparable after they are divided by the mean
        of their layer, in which pruned weights count as 0.

        Args:
            score: returns the scores of a layer, by its number.
            masks: for each layer the weights that count; None for all of them.
            how: the reduction.
            sizes: the number of weights of each layer, including those that were removed from the network.
            failed: makes the error for a layer with scores that are not finite.
        """
        total, count = (torch.zeros(self.units + 1, dtype=torch.float64) for _ in range(2))
        for number, mask in enumerate(masks):
            own = accurate(score(number))
            own = own if mask is None else own.masked_fill(~mask, 0)
            mean = float(torch.linalg.vector_norm(own, ord=1)) / max(1, sizes[number])
            if not math.isfinite(mean):
                raise failed(number)
            scale = (mean or 1.0) ** (2 if how == "norm" else 1)
            sums, numbers = _sums(_pairs(own), how).cpu() / scale, _numbers(own, mask)
            for axis, units in self._axes(number):
                total.index_add_(0, units, sums.sum(1 - axis))
                count.index_add_(0, units, numbers.sum(1 - axis))
        result = total[: self.units]
        if how == "norm":
            return result.sqrt()
        return result / count[: self.units].clamp_min(1) if how == "mean" else result

    def _axes(self, number: int) -> list[tuple[int, Tensor]]:
        """The axes of a weight that units lie along, with the unit of each place."""
        axis, inputs = self.output_axes[number], self.inputs[number]
        return [(axis, self.outputs[number]), *([] if inputs is None else [(1 - axis, inputs)])]


def _pairs(tensor: Tensor) -> Tensor:
    """A tensor of a weight's shape with three axes: two for channels, and one for the positions of a kernel."""
    return tensor.reshape(len(tensor), tensor.shape[1] if tensor.ndim > 1 else 1, tensor.shape[2:].numel())


def _sums(pairs: Tensor, how: Reduction) -> Tensor:
    """The sum of the scores between two channels, or of their squares, in float64."""
    if how == "norm":
        norm: Tensor = torch.linalg.vector_norm(pairs, dim=2, dtype=torch.float64)
        return norm.square()
    return (pairs[:, :, 0] if pairs.shape[2] == 1 else pairs.sum(2)).double()


def _numbers(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The number of weights between two channels that count."""
    pairs = _pairs(scores)
    if mask is None:
        return torch.full(pairs.shape[:2], float(pairs.shape[2]), dtype=torch.float64)
    return _pairs(mask)[:, :, 0].cpu().double() * pairs.shape[2]


def table_of_network(model: nn.Module, layers: Sequence[Layer], example: tuple[Tensor, ...]) -> ChannelTable:
    """The channels of a network that can be traced."""
    return _table(layers, channel_ties(model, example))


def table_of_blocks(model: nn.Module, layers: Sequence[Layer]) -> ChannelTable | None:
    """The heads and feed-forward features of a transformer; None if the model has no block that is recognized."""
    sets = feature_sets(model)
    if not sets:
        return None
    channels = {layer.name: LayerChannels(*([FIXED] * n for n in _sides(layer))) for layer in layers}
    first = FIXED + 1
    for each in sets:
        _add(each, channels, first)
        first += each.units
    untouched = [name for name, each in channels.items() if not {*each.outputs, *(each.inputs or ())} - {FIXED}]
    shown = ", ".join(untouched[:5]) + (f" and {len(untouched) - 5} more" if len(untouched) > 5 else "")
    notes = (f"no channel of these can be removed, so nothing of them is pruned: {shown}",) if untouched else ()
    return _table(layers, ChannelTies(channels, notes))


def _add(features: FeatureSet, channels: dict[str, LayerChannels], first: int) -> None:
    """Give the units of a feature set their numbers, if the pruner covers every layer that writes or reads them."""
    names = [f"{name}.weight" for name in (*features.writers, *features.readers)]
    if not all(name in channels for name in names):
        return
    for name, places in features.writers.items():
        _assign(channels[f"{name}.weight"].outputs, places, first)
    for name, places in features.readers.items():
        inputs = channels[f"{name}.weight"].inputs
        assert inputs is not None
        _assign(inputs, places, first)


def _assign(channels: list[int], places: Tensor, first: int) -> None:
    for unit, own in enumerate(places.tolist()):
        for place in own:
            channels[place] = first + unit


def _sides(layer: Layer) -> tuple[int, int]:
    """The outputs and inputs of a layer."""
    axis = _output_axis(layer)
    shape = layer.weight.shape
    return (shape[axis], shape[1 - axis]) if len(shape) > 1 else (shape[0], 1)


def _output_axis(layer: Layer) -> int:
    return 1 if is_transposed(layer.module) or isinstance(layer.module, _ConvTransposeNd) else 0


def _table(layers: Sequence[Layer], ties: ChannelTies) -> ChannelTable:
    """Number the units that only layers of the pruner write and read."""
    covered = {layer.name for layer in layers}
    foreign = {FIXED}
    for name, each in ties.layers.items():
        if name not in covered:  # it is frozen or excluded: its channels stay as they are
            foreign |= {*each.outputs, *(each.inputs or ())}
    known = {name: each for name, each in ties.layers.items() if name in covered}
    sets = sorted({unit for each in known.values() for unit in (*each.outputs, *(each.inputs or ()))} - foreign)
    numbers = {unit: number for number, unit in enumerate(sets)}
    families = list(range(len(sets)))
    outputs: list[Tensor] = []
    inputs: list[Tensor | None] = []
    for layer in layers:
        sides = _sides(layer)
        own = known.get(layer.name, LayerChannels([FIXED] * sides[0], [FIXED] * sides[1]))
        outputs.append(_as_units(own.outputs, numbers))
        inputs.append(None if own.inputs is None else _as_units(own.inputs, numbers))
        members = sorted({numbers[unit] for unit in own.outputs if unit in numbers})
        for unit in members[1:]:
            _merge(families, members[0], unit)
    roots = [_family(families, unit) for unit in range(len(sets))]
    missing = [layer.name for layer in layers if layer.name not in known]
    notes = (*ties.notes, *(f"{name} is not followed: nothing of it is pruned" for name in missing))
    return ChannelTable(len(sets), roots, outputs, inputs, [_output_axis(layer) for layer in layers], notes)


def _as_units(channels: Sequence[int], numbers: Mapping[int, int]) -> Tensor:
    """The number of the unit of each channel; the number of units for a channel that always stays."""
    return torch.tensor([numbers.get(channel, len(numbers)) for channel in channels], dtype=torch.int64)


def _merge(families: list[int], one: int, other: int) -> None:
    low, high = sorted((_family(families, one), _family(families, other)))
    families[high] = low


def _family(families: list[int], unit: int) -> int:
    while families[unit] != unit:
        families[unit] = families[families[unit]]
        unit = families[unit]
    return unit


def positions_of_pairs(table: ChannelTable, layers: Sequence[Layer]) -> list[int]:
    """For each layer, the number of weights between one output and one input; of one output with groups."""
    result = []
    for number, layer in enumerate(layers):
        inputs = table.inputs[number]
        pairs = len(table.outputs[number]) * (1 if inputs is None else len(inputs))
        result.append(math.prod(layer.weight.shape) // max(1, pairs))
    return result

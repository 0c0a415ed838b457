"""The channels of a network as units: which outputs and inputs of which layers belong to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.graph import ChannelGraph
from ..channels.labels import FIXED, Labels, vector_along
from ..channels.resize import Places
from ..channels.trial import removable
from ..modules import inputs_first, is_stacked, unwrapped
from ..weights import Weight
from .granularity import Reduction, accurate


@dataclass(frozen=True)
class ChannelTable:
    """Units, and the channels of each layer that belong to them.

    Args:
        units: the number of units.
        families: for each unit the number of its family. The units of a family are the channels of one tensor, such as
            the outputs of a layer, or of a residual stream. One of them always stays.
        outputs: for each layer, the unit of each output; `units` stands for an output that always stays.
        inputs: for each layer, the unit of each input.
        output_axes: for each layer, the axis of its matrix that the outputs lie along.
        stacked: for each layer, whether its weight is a stack of matrices, which have the same channels.
        notes: what could not be divided into units.
        graph: the channels of the network.
        numbers: for each set of the graph its unit; `units` for one that always stays.
        follows: the attributes of modules that follow their sizes.
        problem: why the code of the network cannot lose some channels; empty if it can lose all.
    """

    units: int
    families: list[int]
    outputs: list[Tensor]
    inputs: list[Tensor]
    output_axes: list[int]
    stacked: list[bool]
    notes: tuple[str, ...]
    graph: ChannelGraph
    numbers: Tensor
    follows: Places
    problem: str

    def zeroed(self, alive: Tensor, model: nn.Module, pruned: Container[str]) -> list[tuple[nn.Parameter, int, Tensor]]:
        """The parameters that must be zero with the weights of removed units, because norms read these units.

        They are biases, embeddings, and the tensors of norms: each with a dimension, and the indices there.
        """
        kept = torch.cat([alive, torch.ones(1, dtype=torch.bool)])
        gone = ~kept[self.numbers] & self.graph.normed
        parameters = dict(unwrapped(model).named_parameters())
        found = [
            (parameters[name], dim, gone[sets].nonzero().flatten())
            for name, dims in self.graph.tensors.items()
            for dim, sets in enumerate(dims)
            if name in parameters and name not in pruned and bool(gone[sets].any())
        ]
        return [(parameter, dim, index.to(parameter.device)) for parameter, dim, index in found]

    def alive(self, masks: Sequence[Tensor]) -> Tensor:
        """The units that have a kept weight."""
        found = torch.zeros(self.units + 1, dtype=torch.bool)
        for number, mask in enumerate(masks):
            # All weights between two channels are kept or pruned together.
            pairs = _pairs(mask, self.stacked[number])[:, :, 0].cpu()
            for axis, units in self._axes(number):
                found[units[pairs.any(1 - axis)]] = True
        return found[: self.units]

    def masks(self, alive: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
        """The masks of whole weights: one is kept if the units of its output and its input are."""
        kept = torch.cat([alive, torch.ones(1, dtype=torch.bool)])
        result = []
        for number, weight in enumerate(weights):
            shape = weight.view.positions.shape
            mask = torch.ones((1,) * len(shape), dtype=torch.bool)
            for axis, units in self._axes(number):
                place = axis + self.stacked[number]
                mask = mask & vector_along(place, len(shape), kept[units])
            result.append(mask.to(weight.mask.device).expand(shape).contiguous())
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
            stacked = self.stacked[number]
            sums, numbers = _sums(_pairs(own, stacked), how).cpu() / scale, _numbers(own, mask, stacked)
            for axis, units in self._axes(number):
                total.index_add_(0, units, sums.sum(1 - axis))
                count.index_add_(0, units, numbers.sum(1 - axis))
        result = total[: self.units]
        if how == "norm":
            return result.sqrt()
        return result / count[: self.units].clamp_min(1) if how == "mean" else result

    def _axes(self, number: int) -> list[tuple[int, Tensor]]:
        """The axes of a matrix that units lie along, with the unit of each place."""
        axis = self.output_axes[number]
        return [(axis, self.outputs[number]), (1 - axis, self.inputs[number])]


def _pairs(tensor: Tensor, stacked: bool) -> Tensor:
    """A tensor of a weight's shape with three axes: two for channels, and one for the positions of a kernel, or for the
    matrices of a stack."""
    if stacked:
        return tensor.movedim(0, 2)
    return tensor.reshape(len(tensor), tensor.shape[1] if tensor.ndim > 1 else 1, tensor.shape[2:].numel())


def _sums(pairs: Tensor, how: Reduction) -> Tensor:
    """The sum of the scores between two channels, or of their squares, in float64."""
    if how == "norm":
        norm: Tensor = torch.linalg.vector_norm(pairs, dim=2, dtype=torch.float64)
        return norm.square()
    return (pairs[:, :, 0] if pairs.shape[2] == 1 else pairs.sum(2)).double()


def _numbers(scores: Tensor, mask: Tensor | None, stacked: bool) -> Tensor:
    """The number of weights between two channels that count."""
    pairs = _pairs(scores, stacked)
    if mask is None:
        return torch.full(pairs.shape[:2], float(pairs.shape[2]), dtype=torch.float64)
    return _pairs(mask, stacked)[:, :, 0].cpu().double() * pairs.shape[2]


def table_of_network(
    model: nn.Module,
    weights: Sequence[Weight],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    residual: bool = False,
) -> ChannelTable:
    """The channels of a network that can be removed, as a trial on a copy shows.

    Channels stay whole that a weight writes or reads which is frozen or excluded. So do channels that norms mix, and
    that a frozen parameter is part of: they would have to become zero.
    """
    network = unwrapped(model)
    graph = ChannelGraph.of(network, args, kwargs, residual=residual)
    found = removable(network, graph, args, kwargs or {})
    free, normed = found.sets, graph.normed
    covered = {weight.name for weight in weights}
    for name in graph.places.keys() - covered:
        # The words of a language model may be the weights of its output, too.
        is_embedding = isinstance(network.get_submodule(name.rpartition(".")[0]), nn.Embedding)
        for sets in graph.tensors[name]:
            free[sets[~normed[sets]] if is_embedding else sets] = False
    for name, parameter in network.named_parameters():
        for sets in () if parameter.requires_grad else graph.tensors.get(name, ()):
            free[sets[normed[sets]]] = False
    free[FIXED] = False
    here = torch.zeros_like(free)
    for weight in weights:
        for sets in graph.tensors.get(weight.name, ()):
            here[sets] = True
    chosen = (free & here).nonzero().flatten()
    numbers = torch.full((graph.size,), len(chosen))
    numbers[chosen] = torch.arange(len(chosen))
    axes = [_output_axis(weight) for weight in weights]
    sides = [_sides_of(weight, graph, axis) for weight, axis in zip(weights, axes, strict=True)]
    outputs, inputs = ([numbers[side[k]] for side in sides] for k in (0, 1))
    notes = tuple(
        f"nothing of {weight.name} is pruned: {why_outputs_stay(weight, graph, found.problem)}"
        for weight, *own in zip(weights, outputs, inputs, strict=True)
        if not any(bool((side < len(chosen)).any()) for side in own)
    )
    stacked, families = list(map(_is_stack, weights)), _families(outputs, len(chosen))
    followed = graph, numbers, found.follows, found.problem
    return ChannelTable(len(chosen), families, outputs, inputs, axes, stacked, notes, *followed)


def _sides_of(weight: Weight, graph: ChannelGraph, axis: int) -> tuple[Tensor, Tensor]:
    """The sets of the outputs and the inputs of a weight."""
    shape = weight.view.positions.shape
    fixed = tuple(torch.full((size,), FIXED) for size in shape)
    sets = (*graph.tensors.get(weight.name, fixed), torch.full((1,), FIXED))[_is_stack(weight) :]
    return sets[axis], sets[1 - axis]


def _output_axis(weight: Weight) -> int:
    return int(inputs_first(weight.module))


def _is_stack(weight: Weight) -> bool:
    """Whether a weight is a stack of matrices: those of experts."""
    return len(weight.view.positions.shape) == 3 and is_stacked(weight.module)


def why_outputs_stay(weight: Weight, graph: ChannelGraph, problem: str) -> str:
    """Why outputs of a weight cannot be removed. `problem` says why the code of the network cannot lose some."""
    if weight.name not in graph.tensors:
        return "the network does not use it in a call like this"
    known = graph.reasons[weight.name][_output_axis(weight) + _is_stack(weight)]
    return known or problem or "a layer that is not pruned writes or reads them"


def _families(outputs: Sequence[Tensor], units: int) -> list[int]:
    """Units that are outputs of one layer belong to one family, which has the number of its first unit."""
    together = Labels()
    labels = together.new(units)
    for channels in outputs:
        members = labels[channels[channels < units]]
        together.tie(members, members[:1])
    families: list[int] = (together.roots(labels) - labels[:1]).tolist()
    return families

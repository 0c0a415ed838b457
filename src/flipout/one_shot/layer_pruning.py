"""One layer pruned: what is left of its weight, and how far its outputs are off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..numerics import wide
from ..units import Granularity
from ..units.patterns import PatternUnits
from . import solvers
from .layers import Layer, Moments
from .scoring import Scoring
from .selection import Scope, rows_kept, select


class Errors(NamedTuple):
    """The error of the outputs of a layer, relative to their mean square: with its weights pruned and left as they
    are otherwise, and as they are at the end."""

    masked: float
    final: float


UNKNOWN = Errors(math.nan, math.nan)
"""The errors of a layer whose inputs are not observed."""


@dataclass(frozen=True)
class LayerPruning:
    """How a layer is pruned.

    Args:
        network: the network.
        granularity: what is pruned as one.
        scope: whether each output loses the same share.
        scoring: the criterion; None for Optimal Brain Surgeon.
        damping: of the Hessian.
    """

    network: nn.Module
    granularity: Granularity
    scope: Scope
    scoring: Scoring | None
    damping: float

    def inverse_diagonal(self, moments: Moments) -> Tensor:
        """The diagonal of the inverse Hessian, (groups, inputs)."""
        return _diagonal(self._inverses(moments), moments.layer)

    def _inverses(self, moments: Moments) -> list[Tensor]:
        return [solvers.inverse(solvers.damped(each, self.damping)) for each in moments.hessians()]

    def scores(self, layer: Layer, moments: Moments | None, inverses: Sequence[Tensor]) -> Tensor:
        """The scores of a layer, from the moments of its inputs."""
        if self.scoring is not None:
            return self.scoring.scores(layer, moments.diagonal() if moments and self.scoring.needs_inputs else None)
        matrix = layer.matrix(layer.weight.parameter.detach())
        return layer.tensor(solvers.saliency(matrix, _diagonal(inverses, layer)))

    @torch.no_grad()
    def prune(self, layer: Layer, moments: Moments | None, keep: int, floor: int) -> Errors:
        """Prune a layer to a number of weights, and return the error of its outputs: NaN if its inputs are unknown."""
        hessians = moments.hessians() if moments else []
        inverses = [] if self.scoring or moments is None else self._inverses(moments)
        weight = layer.matrix(layer.weight.parameter.detach())
        mask = layer.matrix(self._mask(layer, self.scores(layer, moments, inverses), keep, floor))
        before, zeros = with_bias(layer, weight), with_bias_mark(layer, weight == 0, False)
        pruned = zeros | with_bias_mark(layer, ~mask, False)
        after = before.masked_fill(pruned, 0)
        for place, inverse in zip(places(layer), inverses, strict=False):
            after[..., place], pruned[..., place] = self._compensated(
                layer,
                before[..., place],
                inverse,
                pruned[..., place],
                zeros[..., place],
                keep,
                place.stop > layer.shape[2],
            )
        errors = error_of(layer, hessians, before, before.masked_fill(pruned, 0), after) if hessians else UNKNOWN
        write(layer, after)
        layer.weight.mask.copy_(layer.tensor(~pruned[..., : layer.shape[2]]))
        layer.weight.kept = int(layer.weight.mask.sum())
        return errors

    def _mask(self, layer: Layer, scores: Tensor, keep: int, floor: int) -> Tensor:
        weight = layer.weight
        if self.scope == "output" and self.granularity.kind == "weight":
            matrix = layer.matrix(scores)
            if not bool(torch.isfinite(matrix).all()):
                raise FloatingPointError(f"{layer.name} has NaN or infinite scores; nothing was pruned")
            return layer.tensor(rows_kept(matrix, keep))
        (mask,) = select(self.network, [weight], min(keep, weight.kept), [floor], self.granularity, lambda _: scores)
        return mask

    def _compensated(
        self,
        layer: Layer,
        weight: Tensor,
        inverse: Tensor,
        marks: Tensor,
        zeros: Tensor,
        keep: int,
        has_bias: bool,
    ) -> tuple[Tensor, Tensor]:
        """A chunk of a weight after Optimal Brain Surgeon, and what is pruned of it.

        In a pattern, and among single weights, `marks` says how many are pruned where; which ones is decided later.
        """
        inputs = weight.shape[-1] - has_bias
        stay = torch.arange(weight.shape[-1], device=weight.device) >= inputs  # the bias
        stay = stay.expand_as(zeros)
        if self.granularity.kind == "weight":
            choose = solvers.as_many_as(marks, per_output=self.scope == "output")
        elif self.granularity.kind == "pattern":
            level = PatternUnits([layer.weight], self.granularity, None).level(keep)
            order = torch.arange(weight.shape[-1], device=weight.device)
            by_position = order[:inputs].view(-1, layer.positions).t().flatten()
            order = torch.cat([by_position, order[inputs:]])
            choose = solvers.with_fixed(solvers.n_of_m(level), zeros[..., order], stay)
            inverse, every = inverse[:, order][:, :, order], self.granularity.numbers[1]
            found = solvers.prune_columns(weight[..., order], inverse, choose, every)
            result, pruned = (torch.empty_like(each).index_copy_(-1, order, each) for each in found)
            return result, pruned
        else:
            choose = solvers.exactly(marks)
        return solvers.prune_columns(weight, inverse, solvers.with_fixed(choose, zeros, stay))

    @torch.no_grad()
    def remove_channels(self, layer: Layer, moments: Moments | None, mask: Tensor) -> Errors:
        """Prune the inputs of a layer that a mask leaves out of all outputs. Its outputs are pruned later, when
        every layer that reads them has made up for them."""
        if moments is None:
            return UNKNOWN
        if layer.shape[0] > 1:  # a group belongs to its outputs
            return Errors(0.0, 0.0)
        hessians, kept = moments.hessians(), layer.matrix(mask)
        before = with_bias(layer, layer.matrix(layer.weight.parameter.detach()))
        inputs = with_bias_mark(layer, kept.any(1, keepdim=True), True)
        masked = before * inputs
        after = masked.clone()
        for place, hessian in zip(places(layer), hessians if self.scoring is None else (), strict=False):
            damped = solvers.damped(hessian, self.damping)
            after[..., place] = solvers.remove_inputs(before[..., place], damped, inputs[:, 0, place])
        rows = kept.any(2, keepdim=True)
        errors = error_of(layer, hessians, before * rows, masked * rows, after * rows)
        write(layer, after)
        return errors


def _diagonal(inverses: Sequence[Tensor], layer: Layer) -> Tensor:
    """The diagonals of all chunks, without the bias."""
    return torch.cat([each.diagonal(dim1=1, dim2=2) for each in inverses], 1)[:, : layer.shape[2]]


def places(layer: Layer) -> list[slice]:
    """The inputs of each Hessian, with the bias as the last one of all."""
    *others, last = layer.chunks
    return [*others, slice(last.start, last.stop + (layer.bias is not None))]


def with_bias(layer: Layer, matrix: Tensor) -> Tensor:
    """The weight as a matrix in float32 or float64, with the bias as the last input."""
    if layer.bias is None:
        return wide(matrix).clone()
    return torch.cat([wide(matrix), wide(layer.bias.detach()).view(*layer.shape[:2], 1)], -1)


def with_bias_mark(layer: Layer, marks: Tensor, mark: bool) -> Tensor:
    """Marks with a further input for the bias, if there is one."""
    return marks if layer.bias is None else torch.cat([marks, torch.full_like(marks[..., :1], mark)], -1)


def error_of(layer: Layer, hessians: Sequence[Tensor], before: Tensor, masked: Tensor, after: Tensor) -> Errors:
    """The errors of outputs relative to their mean square."""
    total, *errors = (
        sum(solvers.squared_error(each[..., place], h) for place, h in zip(places(layer), hessians, strict=True))
        for each in (before, before - masked, before - after)
    )
    return Errors(*(error / total if total else 0.0 for error in errors))


def write(layer: Layer, matrix: Tensor) -> None:
    """Write a matrix into the weight, and its last input into the bias."""
    layer.weight.parameter.copy_(layer.tensor(matrix[..., : layer.shape[2]]))
    if layer.bias is not None:
        layer.bias.copy_(matrix[..., -1].reshape(-1))

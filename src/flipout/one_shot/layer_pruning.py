"""One layer pruned: what is left of its weight, and how far its outputs are off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
        layer, orders = moments.layer, self._orders(moments.layer)
        found = [root.inverse_diagonal() for root in moments.roots(self.damping, orders)]
        return restored(layer, orders, torch.cat(found, 1))[:, : layer.shape[2]]

    def scores(self, layer: Layer, moments: Moments | None) -> Tensor:
        """The scores of a layer, from the moments of its inputs."""
        if self.scoring is not None:
            return self.scoring.scores(layer, moments.diagonal() if moments and self.scoring.needs_inputs else None)
        assert moments is not None
        matrix = wide(layer.matrix(layer.weight.parameter.detach()))
        return layer.tensor(solvers.saliency(matrix, self.inverse_diagonal(moments)))

    @torch.no_grad()
    def prune(self, layer: Layer, moments: Moments | None, keep: int, floor: int) -> Errors:
        """Prune a layer to a number of weights, and return the error of its outputs: NaN if its inputs are unknown."""
        mask = layer.matrix(self._mask(layer, self.scores(layer, moments), keep, floor))
        orders = self._orders(layer)
        before = arranged(layer, orders, with_bias(layer, layer.matrix(layer.weight.parameter.detach())))
        zeros = with_bias_mark(layer, before[..., : layer.shape[2]] == 0, False)
        pruned = zeros | arranged(layer, orders, with_bias_mark(layer, ~mask, False))
        if moments is None:
            after, errors = before.masked_fill(pruned, 0), UNKNOWN
        elif self.scoring is not None:
            after = before.masked_fill(pruned, 0)
            errors = error_of(layer, _errors_by_hessian(moments), before, pruned, after)
        else:
            after, roots = before.clone(), moments.roots(self.damping, orders)
            for place, root in zip(places(layer), roots, strict=True):
                marks = self._compensate(
                    layer, place, after[..., place], root, pruned[..., place], zeros[..., place], keep
                )
                pruned[..., place] = marks
            errors = error_of(layer, [root.squared_error for root in roots], before, pruned, after)
        write(layer, restored(layer, orders, after))
        layer.weight.mask = layer.tensor(~restored(layer, orders, pruned)[..., : layer.shape[2]])
        layer.weight.kept = int(layer.weight.mask.sum())
        return errors

    def _mask(self, layer: Layer, scores: Tensor, keep: int, floor: int) -> Tensor:
        weight = layer.weight
        if self.scope == "output" and self.granularity.kind == "weight":
            matrix = layer.matrix(scores)
            if not bool(torch.isfinite(matrix).all()):
                raise FloatingPointError(
                    f"{layer.name} has NaN or infinite scores, and nothing was pruned: check its weights and the "
                    "calibration batches"
                )
            return layer.tensor(rows_kept(matrix, keep))
        (mask,) = select(self.network, [weight], min(keep, weight.kept), [floor], self.granularity, lambda _: scores)
        return mask

    def _orders(self, layer: Layer) -> list[Tensor]:
        """The order in which the inputs of each chunk are visited, if it is not that of the matrix: a pattern is one
        of channels, so those of one kernel position follow each other."""
        if self.granularity.kind != "pattern" or layer.positions == 1:
            return []
        orders = []
        for chunk, place in zip(layer.chunks, places(layer), strict=True):
            order = torch.arange(place.stop - place.start, device=layer.weight.parameter.device)
            inputs = chunk.stop - chunk.start
            orders.append(torch.cat([order[:inputs].view(-1, layer.positions).t().flatten(), order[inputs:]]))
        return orders

    def _compensate(
        self,
        layer: Layer,
        place: slice,
        weight: Tensor,
        root: solvers.InverseRoot,
        marks: Tensor,
        zeros: Tensor,
        keep: int,
    ) -> Tensor:
        """Prune a chunk of a weight in place by Optimal Brain Surgeon, and return what is pruned of it.

        In a pattern, and among single weights, `marks` says how many are pruned where; which ones is decided later.
        """
        every = solvers.BLOCK
        number = torch.arange(place.start, place.stop, device=weight.device)
        stay = (number >= layer.shape[2]).expand_as(zeros)  # the bias
        if self.granularity.kind == "weight":
            choose = solvers.as_many_as(marks, per_output=self.scope == "output")
        elif self.granularity.kind == "pattern":
            level = PatternUnits([layer.weight], self.granularity, None).level(keep)
            choose, every = solvers.n_of_m(level), self.granularity.numbers[1]
        else:
            choose = solvers.exactly(marks)
        return solvers.prune_columns(weight, root.factor, solvers.with_fixed(choose, zeros, stay), every)

    @torch.no_grad()
    def remove_channels(self, layer: Layer, moments: Moments | None, mask: Tensor) -> Errors:
        """Prune the inputs of a layer that a mask leaves out of all outputs. Its outputs are pruned later, when
        every layer that reads them has made up for them."""
        if moments is None:
            return UNKNOWN
        if layer.shape[0] > 1:  # a group belongs to its outputs
            return Errors(0.0, 0.0)
        kept = layer.matrix(mask)
        before = with_bias(layer, layer.matrix(layer.weight.parameter.detach()))
        inputs = with_bias_mark(layer, kept.any(1, keepdim=True), True)
        after = before * inputs
        for place, hessian in zip(places(layer), moments.hessians if self.scoring is None else (), strict=False):
            damped = solvers.damped(hessian, self.damping)
            after[..., place] = solvers.remove_inputs(before[..., place], damped, inputs[:, 0, place])
        rows = kept.any(2, keepdim=True)
        pruned = (~inputs).expand_as(before)
        errors = error_of(layer, _errors_by_hessian(moments), before * rows, pruned, after * rows)
        write(layer, after)
        return errors


def arranged(layer: Layer, orders: Sequence[Tensor], matrix: Tensor) -> Tensor:
    """A matrix with the inputs of each chunk in another order."""
    if not orders:
        return matrix
    return torch.cat([matrix[..., place][..., order] for place, order in zip(places(layer), orders, strict=True)], -1)


def restored(layer: Layer, orders: Sequence[Tensor], matrix: Tensor) -> Tensor:
    """A matrix that was `arranged`, as it was before."""
    return arranged(layer, [order.argsort() for order in orders], matrix)


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


ErrorOf = Callable[[Tensor], float]
"""The squared error of the outputs for a change of the weights of a chunk."""
ROWS = 256
"""The outputs whose errors are computed at once."""


def _errors_by_hessian(moments: Moments) -> list[ErrorOf]:
    return [partial(solvers.squared_error, hessian=hessian) for hessian in moments.hessians]


def error_of(layer: Layer, chunks: Sequence[ErrorOf], before: Tensor, pruned: Tensor, after: Tensor) -> Errors:
    """The errors of outputs relative to their mean square."""
    total = wrong_masked = wrong = 0.0
    for place, error in zip(places(layer), chunks, strict=True):
        for start in range(0, layer.shape[1], ROWS):
            part = (..., slice(start, start + ROWS), place)
            total += error(before[part])
            wrong_masked += error(before[part] * pruned[part])
            wrong += error(before[part] - after[part])
    return Errors(wrong_masked / total, wrong / total) if total else Errors(0.0, 0.0)


def write(layer: Layer, matrix: Tensor) -> None:
    """Write a matrix into the weight, and its last input into the bias."""
    layer.weight.parameter.copy_(layer.tensor(matrix[..., : layer.shape[2]]))
    if layer.bias is not None:
        layer.bias.copy_(matrix[..., -1].reshape(-1))
